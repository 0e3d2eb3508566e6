"""Two studies of the case study: larger volumes, and sums over volumes."""
