"""What `scripts/dist` makes, one module for each kind of package. Only the standard library of Python 3.11."""
