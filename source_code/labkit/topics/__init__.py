"""What belongs to one subject together: its readings, its tables, its charts."""
