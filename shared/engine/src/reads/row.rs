//! Reading columns: what sqlx has no type for, and what the kernel has its own type for.

use kernel::{TenantId, Timestamp};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IntoDeserializer, value},
};
use serde_json::value::RawValue;
use sqlx::{Row, postgres::PgRow, types::Json};

/// A `timestamptz` column as whole microseconds since 1970, under the name of the column.
macro_rules! micros {
    ($column:literal) => {
        concat!("(extract(epoch from ", $column, ") * 1000000)::bigint as \"", $column, "\"")
    };
}

/// A `bigint` parameter of microseconds since 1970 as a `timestamptz`.
macro_rules! instant {
    ($parameter:literal) => {
        concat!("(timestamptz 'epoch' + ", $parameter, "::bigint * interval '1 microsecond')")
    };
}

pub(crate) use {instant, micros};

/// A row, column by column.
pub(crate) struct Cells<'a>(pub(crate) &'a PgRow);

impl Cells<'_> {
    /// Whatever sqlx knows how to read.
    pub(crate) fn get<T>(&self, column: &'static str) -> Result<T, sqlx::Error>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        self.0.try_get(column)
    }

    /// A time that was selected as [`micros!`].
    pub(crate) fn time(&self, column: &'static str) -> Result<Timestamp, sqlx::Error> {
        self.get::<i64>(column).map(crate::load::timestamp)
    }

    /// A time that may be absent.
    pub(crate) fn time_if_any(&self, column: &'static str) -> Result<Option<Timestamp>, sqlx::Error> {
        Ok(self.get::<Option<i64>>(column)?.map(crate::load::timestamp))
    }

    /// A number that is never negative.
    pub(crate) fn count(&self, column: &'static str) -> Result<u64, sqlx::Error> {
        self.get::<i64>(column).map(i64::unsigned_abs)
    }

    /// A small number that is never negative.
    pub(crate) fn small(&self, column: &'static str) -> Result<u32, sqlx::Error> {
        self.get::<i32>(column).map(i32::unsigned_abs)
    }

    /// A word that stands for a variant, by its wire name.
    pub(crate) fn word<T: DeserializeOwned>(&self, column: &'static str) -> Result<T, sqlx::Error> {
        parse_word(column, &self.get::<String>(column)?)
    }

    /// Words that stand for variants, by their wire names.
    pub(crate) fn words<T: DeserializeOwned>(&self, column: &'static str) -> Result<Vec<T>, sqlx::Error> {
        self.get::<Vec<String>>(column)?.iter().map(|word| parse_word(column, word)).collect()
    }

    /// Whose row it is.
    pub(crate) fn tenant(&self) -> Result<TenantId, sqlx::Error> {
        self.get::<String>("tenant")?.parse().map_err(|error| decode("tenant", error))
    }

    /// A JSON document as it stands.
    pub(crate) fn raw(&self, column: &'static str) -> Result<Box<RawValue>, sqlx::Error> {
        self.get::<Json<Box<RawValue>>>(column).map(|json| json.0)
    }

    /// A JSON document as a value of its own type.
    pub(crate) fn json<T>(&self, column: &'static str) -> Result<T, sqlx::Error>
    where
        T: for<'r> Deserialize<'r> + 'static,
    {
        self.get::<Json<T>>(column).map(|json| json.0)
    }
}

fn parse_word<T: DeserializeOwned>(column: &'static str, word: &str) -> Result<T, sqlx::Error> {
    let word: value::StrDeserializer<'_, value::Error> = word.into_deserializer();
    T::deserialize(word).map_err(|error| decode(column, error))
}

fn decode(column: &'static str, error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: Box::new(error) }
}
