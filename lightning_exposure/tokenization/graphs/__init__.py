"""The texts of a format as graphs: by characters, by bytes, and by the tokens that spell them."""
