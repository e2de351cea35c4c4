"""What do more GPUs bring? Measured on the GPUs of one host, and on paper for as many as one likes."""

from labkit.subjects.scaling.charts import one_step
from labkit.subjects.scaling.model import scored
from labkit.subjects.scaling.readings import DDP, LAUNCHES, frame, gained, graphs, measured, read
from labkit.subjects.scaling.tables import budgets, gains, on_paper, predictions
