"""Reports: pages with tables and figures of finished runs, as HTML, Markdown, CSV and text."""
