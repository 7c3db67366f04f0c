//! Objects that are a struct and one field more, which is read apart from it: without a second struct that has all
//! the fields again.

use std::borrow::Cow;
use std::marker::PhantomData;

use serde::de::{
    Deserialize, DeserializeSeed, Error, IgnoredAny, IntoDeserializer as _, MapAccess,
};

use crate::strict::Name;

/// Hands on every field of an object but one, which it keeps.
#[derive(Debug)]
pub struct Apart<A, T> {
    fields: A,
    name: &'static str,
    /// The value of that field, once it was read.
    pub value: Option<T>,
    /// Whether there are other fields.
    pub has_others: bool,
}

impl<A, T> Apart<A, T> {
    /// Takes the field of this name out.
    pub const fn new(fields: A, name: &'static str) -> Self {
        Self {
            fields,
            name,
            value: None,
            has_others: false,
        }
    }
}

impl<'de, A: MapAccess<'de>, T: Deserialize<'de>> MapAccess<'de> for Apart<A, T> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        loop {
            let mut name = Cow::Borrowed("");
            let read = Name {
                inner: PhantomData::<IgnoredAny>,
                name: &mut name,
            };
            if self.fields.next_key_seed(read)?.is_none() {
                return Ok(None);
            }
            if name != self.name {
                self.has_others = true;
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            if self.value.is_some() {
                return Err(A::Error::duplicate_field(self.name));
            }
            self.value = Some(self.fields.next_value()?);
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.fields.next_value_seed(seed)
    }
}
