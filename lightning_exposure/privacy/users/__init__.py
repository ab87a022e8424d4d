"""Privacy of users: who the records of a dataset belong to, and what is drawn, clipped and proven for each of them."""
