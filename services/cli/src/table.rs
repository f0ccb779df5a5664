//! Tables for people.

use crate::style::{Paint, Style, clean, cut};

/// Rows under headings. The last column takes what is left of the line.
#[derive(Clone, Debug)]
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<(Paint, String)>>,
    empty: &'static str,
}

impl Table {
    /// With these headings; `empty` is said when there is no row.
    pub fn new(head: impl Into<Vec<&'static str>>, empty: &'static str) -> Self {
        Self { head: head.into(), rows: Vec::new(), empty }
    }

    /// Adds a row of painted cells.
    pub fn row(&mut self, cells: impl IntoIterator<Item = (Paint, String)>) {
        self.rows.push(cells.into_iter().map(|(paint, cell)| (paint, clean(&cell))).collect());
    }

    /// As lines.
    pub fn lines(&self, style: Style) -> Vec<String> {
        if self.rows.is_empty() {
            return vec![style.paint(Paint::Dim, self.empty)];
        }
        let widths: Vec<usize> = (0..self.head.len()).map(|column| self.width(column)).collect();
        let head = self.head.iter().map(|head| (Paint::Dim, head.to_uppercase())).collect::<Vec<_>>();
        std::iter::once(&head).chain(&self.rows).map(|row| line(row, &widths, style)).collect()
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|(_, cell)| cell.chars().count());
        cells.chain(self.head.get(column).map(|head| head.chars().count())).max().unwrap_or(0)
    }
}

fn line(row: &[(Paint, String)], widths: &[usize], style: Style) -> String {
    let mut text = String::new();
    let mut used = 0;
    for (column, (paint, cell)) in row.iter().enumerate() {
        let last = column + 1 == row.len();
        let width = widths.get(column).copied().unwrap_or(0);
        let cell = if last { cut(cell, style.width().saturating_sub(used).max(16)) } else { cell.clone() };
        text += &style.paint(*paint, &cell);
        if !last {
            let gap = width.saturating_sub(cell.chars().count()) + 2;
            text += &" ".repeat(gap);
            used += width + 2;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_is_said_of_nothing() {
        let mut table = Table::new(["run", "status"], "no runs");
        assert_eq!(table.lines(Style::plain()), ["no runs"]);
        for cells in [["a", "done"], ["abcd", "failed\x1b[2J"]] {
            table.row(cells.map(|cell| (Paint::Plain, cell.to_owned())));
        }
        assert_eq!(table.lines(Style::plain()), ["RUN   STATUS", "a     done", "abcd  failed·[2J"]);
    }
}
