"""What a page is: its tables, units, figures and style."""
