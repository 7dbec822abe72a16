"""Text and sentence pairs from documents: web pages, office documents, PDF, books, notebooks, translations and mail."""
