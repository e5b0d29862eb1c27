"""Networks that are trained already, with fewer weights."""
