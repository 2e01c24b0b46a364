"""Facts on disk until the journal has them: a segmented log (`segments`), and the spool on top of it (`spool`)."""
