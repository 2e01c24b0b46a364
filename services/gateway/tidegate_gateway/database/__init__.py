"""The read models in PostgreSQL: connections, migrations, generations, and what is read back from them."""
