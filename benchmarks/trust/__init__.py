"""What comes back on programs and data that nobody here wrote, with default settings."""
