"""The experiments of papers, beside their published figures, and studies of schedules and priors."""
