//! What an expression may name, and what its evaluation can cost at most.
//!
//! The cost of an expression on an event of a given size is an upper bound, found by walking the expression once. A loop
//! runs over at most as many values as its range has. What makes the bound useful is that a loop over the event visits
//! disjoint parts of it, so that a loop within it over a part of each part, as in
//! `data.commits.exists(c, c.modified.exists(f, ...))`, visits no value twice: together they cost one sweep of the event,
//! not its square.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, operators};

use super::{
    FilterError,
    event::{Variable, weigh_text},
};

/// The functions that an expression may call. Macros (`has`, `all`, `exists`, `exists_one`, `map`, `filter`) are expanded
/// before.
const FUNCTIONS: [&str; 27] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "bytes",
    "dyn",
    "duration",
    "timestamp",
    "getFullYear",
    "getMonth",
    "getDayOfYear",
    "getDayOfMonth",
    "getDate",
    "getDayOfWeek",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
    "orValue",
    "hasValue",
    "value",
];

const OPERATORS: [&str; 19] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::NOT_STRICTLY_FALSE,
    operators::IN,
];

const OPTIONAL_OPERATORS: [&str; 2] = [operators::OPT_INDEX, operators::OPT_SELECT];

/// For the error that names them.
pub(super) fn function_names() -> String {
    format!("has, all, exists, exists_one, map, filter, {}", FUNCTIONS.join(", "))
}

/// Checks depth and names, and finds which variables the expression reads.
pub(super) fn check(expression: &IdedExpr, max_depth: usize) -> Result<Vec<Variable>, FilterError> {
    let mut check = Check { max_depth, scopes: Vec::new(), reads: Vec::new() };
    check.walk(expression, 1)?;
    Ok(check.reads)
}

struct Check<'e> {
    max_depth: usize,
    scopes: Vec<&'e str>,
    reads: Vec<Variable>,
}

impl<'e> Check<'e> {
    fn walk(&mut self, expression: &'e IdedExpr, depth: usize) -> Result<(), FilterError> {
        if depth > self.max_depth {
            return Err(FilterError::TooDeep);
        }
        match &expression.expr {
            Expr::Ident(name) => self.variable(name)?,
            Expr::Call(call) => self.function(call)?,
            Expr::Struct(of) => return Err(FilterError::UnknownFunction(of.type_name.clone())),
            Expr::Comprehension(comprehension) => {
                self.walk(&comprehension.iter_range, depth + 1)?;
                let outer = self.scopes.len();
                self.scopes.extend(bound(comprehension));
                for part in body(comprehension) {
                    self.walk(part, depth + 1)?;
                }
                self.scopes.truncate(outer);
                return Ok(());
            }
            Expr::Unspecified | Expr::List(_) | Expr::Literal(_) | Expr::Map(_) | Expr::Select(_) => {}
        }
        parts(&expression.expr).into_iter().try_for_each(|part| self.walk(part, depth + 1))
    }

    fn variable(&mut self, name: &str) -> Result<(), FilterError> {
        if self.scopes.contains(&name) {
            return Ok(());
        }
        let variable = Variable::named(name).ok_or_else(|| FilterError::UnknownVariable(name.to_owned()))?;
        if !self.reads.contains(&variable) {
            self.reads.push(variable);
        }
        Ok(())
    }

    fn function(&self, call: &CallExpr) -> Result<(), FilterError> {
        let name = call.func_name.as_str();
        if ![&FUNCTIONS[..], &OPERATORS, &OPTIONAL_OPERATORS].concat().contains(&name) {
            return Err(FilterError::UnknownFunction(name.to_owned()));
        }
        if name == "matches" && pattern(call).is_none() {
            return Err(FilterError::ComputedPattern);
        }
        Ok(())
    }
}

/// The most that evaluating `expression` can cost when the variables that it reads have this size.
pub(super) fn of(expression: &IdedExpr, size: f64) -> f64 {
    let mut bill = Bill { size, total: 0.0, scopes: Vec::new() };
    bill.walk(expression, 1.0);
    bill.total
}

/// What a loop's variable stands for.
#[derive(Clone, Copy)]
struct Scope<'e> {
    name: &'e str,
    /// How often the body is evaluated, in all.
    times: f64,
    values: Values,
}

#[derive(Clone, Copy)]
enum Values {
    /// Disjoint parts of the event, all of it this often.
    Parts { sweeps: f64 },
    /// Anything of at most this size.
    Any { size: f64 },
}

struct Bill<'e> {
    size: f64,
    total: f64,
    scopes: Vec<Scope<'e>>,
}

impl<'e> Bill<'e> {
    /// Adds what it costs to evaluate `expression` so many times.
    fn walk(&mut self, expression: &'e IdedExpr, times: f64) {
        self.total += times;
        match &expression.expr {
            Expr::Comprehension(comprehension) => self.walk_loop(comprehension, times),
            Expr::Call(call) => {
                self.total += self.work(call, times);
                parts(&expression.expr).into_iter().for_each(|part| self.walk(part, times));
            }
            // What goes into a list or a map is copied.
            Expr::List(_) | Expr::Map(_) => {
                for part in parts(&expression.expr) {
                    self.total += self.reading(part, times);
                    self.walk(part, times);
                }
            }
            _ => parts(&expression.expr).into_iter().for_each(|part| self.walk(part, times)),
        }
    }

    fn walk_loop(&mut self, comprehension: &'e ComprehensionExpr, times: f64) {
        let range = &comprehension.iter_range;
        self.walk(range, times);
        let (iterations, values) = match (self.root(range), &range.expr) {
            (Root::Event, _) => (times * self.size, Values::Parts { sweeps: times }),
            (Root::Scope(Scope { times: outer, values: Values::Parts { sweeps }, .. }), _) => {
                let sweeps = sweeps * (times / outer).max(1.0);
                (times.max(sweeps * self.size), Values::Parts { sweeps })
            }
            (_, Expr::List(list)) => (times * count(list), Values::Any { size: self.size_of(range) }),
            _ => {
                let size = self.size_of(range);
                (times * size, Values::Any { size })
            }
        };
        // Each value is copied into the loop's variable: one sweep, or its size each time.
        self.total += match values {
            Values::Parts { sweeps } => sweeps * self.size,
            Values::Any { size } => times * size,
        };
        let iterations = iterations.max(times);
        let outer = self.scopes.len();
        for name in bound(comprehension) {
            let values = if name == comprehension.accu_var { Values::Any { size: self.size } } else { values };
            self.scopes.push(Scope { name, times: iterations, values });
        }
        for part in body(comprehension) {
            self.walk(part, iterations);
        }
        self.scopes.truncate(outer);
    }

    /// What a call costs beside its arguments.
    fn work(&self, call: &CallExpr, times: f64) -> f64 {
        let operands = call.target.as_deref().into_iter().chain(&call.args);
        match call.func_name.as_str() {
            operators::CONDITIONAL
            | operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::NOT_STRICTLY_FALSE
            | operators::INDEX
            | operators::OPT_INDEX
            | operators::OPT_SELECT => 0.0,
            // A comparison ends with the smaller side.
            operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | "startsWith"
            | "endsWith" => operands.map(|operand| self.reading(operand, times)).reduce(f64::min).unwrap_or_default(),
            "matches" => {
                let compiling = pattern(call).map_or(self.size, compiling);
                times * compiling + operands.map(|operand| 8.0 * self.reading(operand, times)).sum::<f64>()
            }
            // The loop of `map` and `filter` appends in place; what is appended is billed as an element of a list.
            operators::ADD if element_of(call).is_some() => 0.0,
            _ => operands.map(|operand| self.reading(operand, times)).sum(),
        }
    }

    /// What it costs to read a value whole, so many times.
    fn reading(&self, expression: &IdedExpr, times: f64) -> f64 {
        match self.root(expression) {
            Root::Scope(Scope { times: outer, values: Values::Parts { sweeps }, .. }) => {
                times + sweeps * (times / outer).max(1.0) * self.size
            }
            _ => times * self.size_of(expression),
        }
    }

    /// The most that a value can be.
    fn size_of(&self, expression: &IdedExpr) -> f64 {
        match (&expression.expr, self.root(expression)) {
            (_, Root::Event) => self.size,
            (_, Root::Scope(scope)) => match scope.values {
                Values::Parts { .. } => self.size,
                Values::Any { size } => size,
            },
            (Expr::Literal(LiteralValue::String(text)), _) => weigh_text(text.inner()),
            (Expr::Literal(_), _) => 1.0,
            (Expr::Comprehension(comprehension), _) if matches!(comprehension.accu_init.expr, Expr::List(_)) => {
                self.size_of_list(comprehension)
            }
            (Expr::Comprehension(_), _) => 1.0,
            (Expr::Call(call), _) if !may_be_large(call) => 1.0,
            (other, _) => 1.0 + parts(other).into_iter().map(|part| self.size_of(part)).sum::<f64>(),
        }
    }

    /// What `map` and `filter` make of a range: parts of it, which are no more than all of it, or something for each value.
    fn size_of_list(&self, comprehension: &ComprehensionExpr) -> f64 {
        let range = &comprehension.iter_range;
        let of_event = match self.root(range) {
            Root::Event => true,
            Root::Scope(scope) => matches!(scope.values, Values::Parts { .. }),
            Root::Other => false,
        };
        let element = appended(&comprehension.loop_step);
        let is_part = element.is_some_and(|element| begins_with(&element.expr) == Some(&comprehension.iter_var));
        if of_event && is_part {
            self.size
        } else {
            self.size_of(range) * element.map_or(self.size, |element| self.size_of(element)).max(1.0)
        }
    }

    /// What a chain of fields and indices is a part of.
    fn root(&self, expression: &IdedExpr) -> Root<'e> {
        let Some(name) = begins_with(&expression.expr) else { return Root::Other };
        let scope = self.scopes.iter().rev().find(|scope| scope.name == name);
        scope.copied().map_or(Root::Event, Root::Scope)
    }
}

enum Root<'e> {
    Event,
    Scope(Scope<'e>),
    Other,
}

/// The name that a chain of fields and indices begins with.
fn begins_with(mut at: &Expr) -> Option<&String> {
    loop {
        match at {
            Expr::Select(select) if !select.test => at = &select.operand.expr,
            Expr::Call(call) if is_access(call) => at = &call.args.first()?.expr,
            Expr::Ident(name) => return Some(name),
            _ => return None,
        }
    }
}

fn is_access(call: &CallExpr) -> bool {
    matches!(call.func_name.as_str(), operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT)
}

/// Whether a call can give more than a number, a flag or a time.
fn may_be_large(call: &CallExpr) -> bool {
    matches!(
        call.func_name.as_str(),
        operators::CONDITIONAL
            | operators::ADD
            | operators::INDEX
            | operators::OPT_INDEX
            | operators::OPT_SELECT
            | "string"
            | "bytes"
            | "dyn"
            | "orValue"
            | "value"
    )
}

/// What the step of `map` or `filter` appends: `@result + [element]`, for `filter` within a condition.
fn appended(step: &IdedExpr) -> Option<&IdedExpr> {
    match &step.expr {
        Expr::Call(call) if call.func_name == operators::CONDITIONAL => appended(call.args.get(1)?),
        Expr::Call(call) => element_of(call),
        _ => None,
    }
}

fn element_of(call: &CallExpr) -> Option<&IdedExpr> {
    let [result, list] = call.args.as_slice() else { return None };
    let grows = call.func_name == operators::ADD && matches!(&result.expr, Expr::Ident(name) if name.starts_with('@'));
    match &list.expr {
        Expr::List(list) if grows => list.elements.first(),
        _ => None,
    }
}

/// The pattern of a call of `matches`, if it is written out.
fn pattern(call: &CallExpr) -> Option<&str> {
    match &call.args.last()?.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// A pattern is compiled each time: about a hundred and more steps a character, times what its counted repetitions multiply.
fn compiling(pattern: &str) -> f64 {
    let counted = pattern.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let most = |range: &str| range.split(',').filter_map(|number| number.trim().parse::<u32>().ok()).max();
    let repeated: f64 = counted.filter_map(most).map(|count| f64::from(count.max(1))).product();
    64.0 * 100.0 * weigh_text(pattern) * repeated
}

#[expect(clippy::cast_precision_loss, reason = "a bound, not a count")]
fn count(list: &ListExpr) -> f64 {
    list.elements.len() as f64
}

/// The names that a loop binds.
fn bound(comprehension: &ComprehensionExpr) -> impl Iterator<Item = &str> {
    let names = [Some(&comprehension.iter_var), comprehension.iter_var2.as_ref(), Some(&comprehension.accu_var)];
    names.into_iter().flatten().map(String::as_str)
}

/// What a loop evaluates again and again.
fn body(comprehension: &ComprehensionExpr) -> [&IdedExpr; 4] {
    [&comprehension.accu_init, &comprehension.loop_cond, &comprehension.loop_step, &comprehension.result]
}

/// What an expression is made of, but for loops.
fn parts(expression: &Expr) -> Vec<&IdedExpr> {
    match expression {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Struct(of) => of.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Comprehension(_) => Vec::new(),
    }
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}
