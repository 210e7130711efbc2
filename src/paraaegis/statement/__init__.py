"""The statement: one page for a data protection officer about what a run or a configuration protects."""
