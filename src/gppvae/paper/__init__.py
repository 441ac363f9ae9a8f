"""Everything that exists for the paper's experiments alone: data, baselines, recipes, tables, pages, commands.

Nothing outside imports it, except the command `gppvae reproduce` when it is asked for.
"""
