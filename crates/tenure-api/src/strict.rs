//! Reading strictly: a field that nothing knows is an error that names it.
//!
//! The types ignore fields that they do not know, as readers of answers must: a newer server may say more. A server that takes
//! requests, or reads the log back, must not: a misspelt `priorty` would be a silent default, and what a newer version
//! has written would be lost. So strictness is with the reader, not with the type. [`Strict`] fails where a type would
//! skip a value.

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// Reads JSON, all of it.
pub fn from_slice<'de, T: Deserialize<'de>>(json: &'de [u8]) -> serde_json::Result<T> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let value = T::deserialize(Strict::new(&mut reader))?;
    reader.end()?;
    Ok(value)
}

/// A deserializer of JSON that skips nothing. Around visitors and what they are shown it sees to it that everything
/// inside is read in the same way.
#[derive(Debug)]
pub struct Strict<'a, T> {
    inner: T,
    /// The field whose value this is.
    name: Option<&'a str>,
    /// The fields of the struct, if it has said so.
    known: &'static [&'static str],
}

impl<T> Strict<'_, T> {
    /// Reads strictly from here on, inwards.
    pub const fn new(inner: T) -> Self {
        Self::of(inner, &[])
    }

    const fn of(inner: T, known: &'static [&'static str]) -> Self {
        let name = None;
        Self { inner, name, known }
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Strict::new(visitor))
    }

    // JSON says itself what it is, so nearly everything may be asked for in the same way.
    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map identifier
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Strict::new(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = Strict::of(visitor, known);
        self.inner.deserialize_struct(name, known, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = Strict::new(visitor);
        self.inner.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        // A raw value is taken word for word: nothing of it is read, and so nothing skipped.
        if name.starts_with("$serde_json") {
            return self.inner.deserialize_newtype_struct(name, visitor);
        }
        let visitor = Strict::new(visitor);
        self.inner.deserialize_newtype_struct(name, visitor)
    }

    /// What a type asks for that skips a value.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        match (self.name, self.known) {
            (None, _) => self.inner.deserialize_ignored_any(visitor),
            (Some(name), []) => Err(D::Error::custom(format_args!("unknown field `{name}`"))),
            (Some(name), known) => Err(D::Error::unknown_field(name, known)),
        }
    }
}

macro_rules! visits {
    ($($method:ident($($value:ident: $kind:ty)?);)*) => {$(
        fn $method<E: Error>(self, $($value: $kind)?) -> Result<V::Value, E> {
            self.inner.$method($($value)?)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<'_, V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    visits! {
        visit_bool(value: bool);
        visit_i64(value: i64);
        visit_u64(value: u64);
        visit_f64(value: f64);
        visit_str(value: &str);
        visit_borrowed_str(value: &'de str);
        visit_string(value: String);
        visit_none();
        visit_unit();
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Strict::new(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Strict::new(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Strict::new(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Fields {
            fields,
            known: self.known,
            name: Cow::Borrowed(""),
        })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Strict::new(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let Self { name, known, .. } = self;
        self.inner.deserialize(Strict { inner, name, known })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_element_seed(Strict::new(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

struct Fields<'de, A> {
    fields: A,
    known: &'static [&'static str],
    /// The field that was read last. Borrowed, unless it has escapes.
    name: Cow<'de, str>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<'de, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        inner: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let name = &mut self.name;
        self.fields.next_key_seed(Name { inner, name })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, inner: S) -> Result<S::Value, A::Error> {
        let (name, known) = (Some(&*self.name), self.known);
        self.fields.next_value_seed(Strict { inner, name, known })
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<'_, A> {
    type Error = A::Error;
    type Variant = Strict<'static, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.inner.variant_seed(seed)?;
        Ok((value, Strict::new(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Strict::new(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, Strict::new(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(known, Strict::of(visitor, known))
    }
}

/// Reads the name of a field, and keeps it: as a seed, as a deserializer and as a visitor.
pub(crate) struct Name<'a, 'de, T> {
    pub(crate) inner: T,
    pub(crate) name: &'a mut Cow<'de, str>,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Name<'_, 'de, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let name = self.name;
        self.inner.deserialize(Name { inner, name })
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Name<'_, 'de, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, inner: V) -> Result<V::Value, D::Error> {
        let name = self.name;
        self.inner.deserialize_str(Name { inner, name })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Name<'_, 'de, V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<V::Value, E> {
        *self.name = Cow::Owned(name.to_owned());
        self.inner.visit_str(name)
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<V::Value, E> {
        *self.name = Cow::Borrowed(name);
        self.inner.visit_borrowed_str(name)
    }
}
