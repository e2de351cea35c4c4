"""Who finds the planted cause? The report reader and other tools, asked about the clinic's reports."""
