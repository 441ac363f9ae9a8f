"""What goes in: tables of auxiliary columns, arrays of samples, and ready-made data sources."""
