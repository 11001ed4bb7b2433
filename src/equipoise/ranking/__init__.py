"""Terms of the scoring matrix, and top-k lists from them."""
