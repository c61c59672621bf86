"""Images in requests: found, fetched and measured; nobody decodes their pixels here."""
