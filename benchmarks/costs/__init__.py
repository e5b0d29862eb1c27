"""Time, memory and bytes, beside limits and other systems."""
