"""The machine that trains: its device, link, costs; or one that is emulated."""
