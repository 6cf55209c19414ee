"""The study as data: profiles, arms, recipes, suites, tables and claims, and the small code that reads them."""
