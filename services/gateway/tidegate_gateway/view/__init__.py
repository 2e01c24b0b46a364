"""The gateway's read model: a pure fold of the journal, and its JSON form."""
