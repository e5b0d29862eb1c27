"""What a reduction costs: predicted free energies beside measured ones."""
