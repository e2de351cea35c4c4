"""What do runs, benchmarks and reports look like? The charts that notebooks show."""

from labkit.display.charts.budgets import budget_bars, budget_share_bars
from labkit.display.charts.flow import step_chart
from labkit.display.charts.results import ladder, ladder_parts, underflow
