"""One trace per job: spans derived from the journal alone, kept in PostgreSQL, served as Jaeger does and exported."""
