"""What do runs, benchmarks and reports look like? The charts that notebooks show."""

from labkit.display.charts.budgets import budget_bars, budget_share_bars
from labkit.display.charts.explorer import explore
from labkit.display.charts.flow import queue_depth, step_chart
from labkit.display.charts.results import ladder, ladder_parts, underflow
from labkit.display.charts.timelines import pick, timeline
