//! Filters: CEL over an event from outside, for triggers and for waits; and what such an expression says, as text.
//!
//! The expressions come from agent files and from models, the events from anywhere, so both are bounded: an expression by
//! its length and depth when it is compiled, an evaluation by what it may cost at most on the event at hand, which is known
//! before it starts (see `cost.rs`). There is no expression and no event on which a filter hangs, and a panic of the
//! interpreter is an error like any other.

mod cost;
mod event;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
};

use cel::{Context, Env, ExecutionError, Value, common::ast::IdedExpr};

use event::Variable;

/// The longest filter, in bytes.
pub const MAX_FILTER_BYTES: usize = 1024;
/// The deepest nesting of a filter's parts.
const MAX_DEPTH: usize = 48;
/// The most that one evaluation may cost, in steps of about 50 ns: a quarter of a second.
const MAX_STEPS: f64 = 5e6;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A compiled filter. Cheap to clone.
#[derive(Clone)]
pub struct Filter {
    source: Arc<str>,
    expression: Arc<IdedExpr>,
    reads: Arc<[Variable]>,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Filter").field(&self.source).finish()
    }
}

/// Why a filter cannot be used, or not on this event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The expression is too long.
    #[error("the expression is {bytes} bytes, more than the {MAX_FILTER_BYTES} that are taken: shorten it")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The expression is nested too deep.
    #[error("the expression is nested deeper than {MAX_DEPTH} levels: split it, or join parts with && and ||")]
    TooDeep,
    /// The expression is not CEL.
    #[error("not a CEL expression, at line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the parser says.
        message: String,
    },
    /// A variable that an event does not have.
    #[error("`{0}` is not a variable: there are id, source, type, subject, time and data")]
    UnknownVariable(String),
    /// A function that does not exist.
    #[error("`{0}` is not a function: there are {functions}", functions = cost::function_names())]
    UnknownFunction(String),
    /// A pattern that is not written out.
    #[error("`matches` takes a pattern in quotes, not one that is computed")]
    ComputedPattern,
    /// The result says neither yes nor no.
    #[error("the expression gives a {0}, not true or false: compare it with something")]
    NotBool(String),
    /// The result is no text.
    #[error("the expression gives a {0}, not a text or a number: take one field of it")]
    NotText(String),
    /// The expression makes no sense for this event.
    #[error("the expression fails on this event: {0}")]
    Evaluate(String),
    /// On this event it could take too long.
    #[error(
        "the expression could take too long on an event of this size: fewer loops within each other, or a smaller event"
    )]
    TooExpensive,
    /// The interpreter failed.
    #[error("the interpreter of expressions failed: write the expression another way")]
    Interpreter,
}

impl Filter {
    /// Compiles an expression.
    ///
    /// # Errors
    /// When it is too long or too deep, is not CEL, or names what does not exist.
    pub fn compile(source: &str) -> Result<Self, FilterError> {
        if source.len() > MAX_FILTER_BYTES {
            return Err(FilterError::TooLong { bytes: source.len() });
        }
        let parsed = catch_unwind(|| ENV.parser().max_recursion_depth(32).parse(source));
        let expression = parsed.map_err(|_| FilterError::Interpreter)?.map_err(|errors| syntax(&errors))?;
        let reads = cost::check(&expression, MAX_DEPTH)?;
        Ok(Self { source: source.into(), expression: Arc::new(expression), reads: reads.into() })
    }

    /// The expression as it was written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether an event, as the JSON of a CloudEvent, is meant. An event without a field that the expression reads is not:
    /// use `has(data.field)` to ask for it.
    ///
    /// # Errors
    /// When the expression makes no sense for this event, or could take too long on it.
    pub fn matches(&self, event: &serde_json::Value) -> Result<bool, FilterError> {
        match self.value(event)? {
            Some(Value::Bool(answer)) => Ok(answer),
            Some(other) => Err(FilterError::NotBool(other.type_of().to_string())),
            None => Ok(false),
        }
    }

    /// What the expression says of an event, as text. None of an event without a field that it reads.
    ///
    /// # Errors
    /// As [`Filter::matches`], and when it says neither text nor a number nor yes or no.
    pub fn text(&self, event: &serde_json::Value) -> Result<Option<String>, FilterError> {
        match self.value(event)? {
            Some(Value::String(text)) => Ok(Some(text.to_string())),
            Some(Value::Int(number)) => Ok(Some(number.to_string())),
            Some(Value::UInt(number)) => Ok(Some(number.to_string())),
            Some(Value::Float(number)) => Ok(Some(number.to_string())),
            Some(Value::Bool(answer)) => Ok(Some(answer.to_string())),
            Some(Value::Null) | None => Ok(None),
            Some(other) => Err(FilterError::NotText(other.type_of().to_string())),
        }
    }

    fn value(&self, event: &serde_json::Value) -> Result<Option<Value>, FilterError> {
        if cost::of(&self.expression, event::size(event, &self.reads)) > MAX_STEPS {
            return Err(FilterError::TooExpensive);
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut context = Context::with_env(Arc::clone(&ENV));
            for variable in self.reads.iter() {
                context.add_variable_from_value(variable.name(), variable.of(event));
            }
            Value::resolve(&self.expression, &context)
        }));
        match result.map_err(|_| FilterError::Interpreter)? {
            Ok(value) => Ok(Some(value)),
            Err(ExecutionError::NoSuchKey(_)) => Ok(None),
            Err(error) => Err(FilterError::Evaluate(kernel::excerpt(&error.to_string(), 500))),
        }
    }
}

fn syntax(errors: &cel::ParseErrors) -> FilterError {
    let place = |number: isize| usize::try_from(number).unwrap_or(0);
    let first = errors.errors.first();
    FilterError::Syntax {
        line: first.map_or(1, |error| place(error.pos.0).max(1)),
        column: first.map_or(1, |error| place(error.pos.1).max(1)),
        message: first.map_or_else(|| "it is empty".to_owned(), |error| kernel::excerpt(&error.msg, 200)),
    }
}

#[cfg(test)]
mod tests;
