"""How long an epsilon takes, beside other accountants."""
