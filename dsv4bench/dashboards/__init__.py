"""How results are shown: tables, markdown, figures."""
