"""What people see: the command line, progress, reports."""
