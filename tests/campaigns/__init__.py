"""Campaigns: long, seeded attacks on what the library promises to survive; `make campaigns` runs them."""
