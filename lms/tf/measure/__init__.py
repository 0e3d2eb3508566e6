"""What the present device, link and host can do, and what ops take."""
