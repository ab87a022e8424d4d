"""Generated records of any kind: what they tell about the real ones, and what they are good for."""
