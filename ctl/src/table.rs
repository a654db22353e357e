//! Aligns tables. Does not know their content.

/// Aligns lines of cells: each column as wide as its widest cell, two spaces between, none at the
/// end.
pub fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| {
            lines
                .iter()
                .filter_map(|line| line.get(at))
                .map(|c| width(c))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (cell, wide) in line.iter().zip(&widths) {
            row.push_str(cell);
            row.extend(std::iter::repeat_n(' ', wide - width(cell) + 2));
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// Columns of a text on a terminal, for the characters that occur here.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_count_as_columns_not_as_bytes() {
        let lines = [
            vec!["µs".to_owned(), "x".to_owned()],
            vec!["ms".to_owned(), "y".to_owned()],
        ];
        assert_eq!(align(&lines), "µs  x\nms  y\n");
    }
}
