"""How does a result look? Tables, bars, listings."""

from labkit.display import own_folder

own_folder.choose()  # before any module of this room imports matplotlib
