"""Records: formats, columns and messages of rows, whatever names their authors chose."""
