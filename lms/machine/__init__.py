"""The machine that trains: its device, link, costs."""
