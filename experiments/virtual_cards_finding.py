"""The finding of `virtual_cards`: sentences, tables, goals."""


def finding(head, rows): ...
def goals(head, rows):
    return ()
