"""The pages of HTML: one for a run, one for a comparison."""
