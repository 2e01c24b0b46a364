"""The projector: folds the journal into PostgreSQL, rows and position in one transaction."""
