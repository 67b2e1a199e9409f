//! The type identity of a store: what `store.zr` says its records are.
//!
//! One msgpack map, `{"dtype", "item_shape"}` for a dense store and `{"dtype"}` for a ragged
//! one, decoded strictly: exactly these keys in this order, bounded in size and depth, and
//! nothing but what encoding the result would give again. The dtype is numpy's `dtype.str`,
//! the `descr` list of a structured type, or the name of an extension type; this module knows
//! it only well enough to say how many bytes a value has.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::format::MAX_RECORD_BYTES;

/// The largest `store.zr`, in bytes: a structured type of some thousand fields.
pub const IDENTITY_BYTES_MAX: u64 = 1 << 20;
/// How deep structured types may nest.
pub const DTYPE_DEPTH_MAX: usize = 32;
/// Axes of a record; numpy's own limit.
pub const DIMENSIONS_MAX: usize = 64;

/// Extension types of `ml_dtypes`, by name, with their bytes. numpy's `dtype.str` calls them
/// all void, so they are kept by name.
pub const EXTENSION_DTYPES: [(&str, u64); 21] = [
    ("bfloat16", 2),
    ("float8_e3m4", 1),
    ("float8_e4m3", 1),
    ("float8_e4m3b11fnuz", 1),
    ("float8_e4m3fn", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e5m3fnu", 1),
    ("float8_e8m0fnu", 1),
    ("float6_e2m3fn", 1),
    ("float6_e3m2fn", 1),
    ("float4_e2m1fn", 1),
    ("complex32", 4),
    ("bcomplex32", 4),
    ("int1", 1),
    ("int2", 1),
    ("int4", 1),
    ("uint1", 1),
    ("uint2", 1),
    ("uint4", 1),
];

/// An element type as it is persisted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Dtype {
    /// numpy's `dtype.str` (such as `<i4`), or the name of an extension type.
    Plain(String),
    /// The fields of a structured type, in order.
    Structured(Vec<Field>),
}

/// A field of a structured type, as in numpy's `dtype.descr`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Field {
    /// Name and type. An empty name is padding.
    Scalar(FieldName, Dtype),
    /// Name, type and the shape of a subarray.
    Array(FieldName, Dtype, Vec<u64>),
}

/// A field's name, with its title where it has one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FieldName {
    /// Just the name.
    Name(String),
    /// Title and name.
    Titled(String, String),
}

impl Dtype {
    /// The bytes of one value, or why the type cannot be stored.
    pub fn item_bytes(&self) -> Result<u64, String> {
        self.item_bytes_within(DTYPE_DEPTH_MAX)
    }

    fn item_bytes_within(&self, depth: usize) -> Result<u64, String> {
        let fields = match self {
            Self::Plain(name) => return plain_bytes(name),
            Self::Structured(fields) => fields,
        };
        if depth == 0 {
            return Err(format!("the dtype nests over {DTYPE_DEPTH_MAX} deep"));
        }
        if fields.is_empty() {
            return Err("a structured dtype needs a field".into());
        }
        fields.iter().try_fold(0u64, |total, field| {
            let (dtype, shape) = match field {
                Field::Scalar(_, dtype) => (dtype, [].as_slice()),
                Field::Array(_, dtype, shape) => (dtype, shape.as_slice()),
            };
            let bytes = dtype.item_bytes_within(depth - 1)?;
            shape_bytes(bytes, shape)
                .and_then(|field_bytes| total.checked_add(field_bytes))
                .filter(|total| *total <= MAX_RECORD_BYTES)
                .ok_or_else(|| "the dtype is over the record limit".to_owned())
        })
    }
}

/// `bytes` times every dimension of `shape`, unless that overflows.
pub(crate) fn shape_bytes(bytes: u64, shape: &[u64]) -> Option<u64> {
    // A zero anywhere makes the product zero, whatever overflows beside it.
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(bytes, |product, dim| product.checked_mul(*dim))
}

/// The bytes of a value of numpy's `dtype.str` or of an extension type's name.
fn plain_bytes(name: &str) -> Result<u64, String> {
    if let Some((_, bytes)) = EXTENSION_DTYPES.iter().find(|(known, _)| *known == name) {
        return Ok(*bytes);
    }
    let unknown = || format!("dtype {name:?} cannot be stored");
    let rest = name.strip_prefix(['<', '>', '|', '=']).ok_or_else(unknown)?;
    let kind = rest.chars().next().ok_or_else(unknown)?;
    let rest = &rest[kind.len_utf8()..];
    if matches!(kind, 'M' | 'm') {
        let unit = rest.strip_prefix('8').ok_or_else(unknown)?;
        let inside = unit.strip_prefix('[').and_then(|unit| unit.strip_suffix(']'));
        let is_unit = unit.is_empty()
            || inside.is_some_and(|unit| {
                unit.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'/')
            });
        return if is_unit { Ok(8) } else { Err(unknown()) };
    }
    let is_plain = !rest.starts_with('0') && rest.bytes().all(|digit| digit.is_ascii_digit());
    let size: u64 = rest.parse().ok().filter(|_| is_plain).ok_or_else(unknown)?;
    let known = match kind {
        'b' => size == 1,
        'i' | 'u' => matches!(size, 1 | 2 | 4 | 8),
        'f' => matches!(size, 2 | 4 | 8 | 12 | 16),
        'c' => matches!(size, 8 | 16 | 24 | 32),
        'S' | 'V' | 'U' => true,
        _ => false,
    };
    let width = if kind == 'U' { 4 } else { 1 };
    size.checked_mul(width).filter(|bytes| known && *bytes <= MAX_RECORD_BYTES).ok_or_else(unknown)
}

/// What the records of a store are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// Every record has one shape.
    Dense {
        /// The element type.
        dtype: Dtype,
        /// The shape of a record; empty for scalars.
        item_shape: Vec<u64>,
    },
    /// Every record has its own shape.
    Ragged {
        /// The element type.
        dtype: Dtype,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DenseMap<D> {
    dtype: D,
    item_shape: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RaggedMap<D> {
    dtype: D,
}

/// What a dtype may be made of, decoded in one pass: trying one form after the other would
/// double the work at each level of nesting.
enum Node {
    Number(u64),
    Text(String),
    List(Vec<Node>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;

        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, a number or a list of them")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
                Ok(Node::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Node, E> {
                Ok(Node::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Node::List(list))
            }
        }

        deserializer.deserialize_any(NodeVisitor)
    }
}

impl Node {
    fn into_dtype(self) -> Option<Dtype> {
        match self {
            Self::Text(name) => Some(Dtype::Plain(name)),
            Self::List(fields) => fields
                .into_iter()
                .map(Self::into_field)
                .collect::<Option<_>>()
                .map(Dtype::Structured),
            Self::Number(_) => None,
        }
    }

    fn into_field(self) -> Option<Field> {
        let Self::List(parts) = self else { return None };
        let mut parts = parts.into_iter();
        let name = match parts.next()? {
            Self::Text(name) => FieldName::Name(name),
            Self::List(names) => match <[Self; 2]>::try_from(names) {
                Ok([Self::Text(title), Self::Text(name)]) => FieldName::Titled(title, name),
                _ => return None,
            },
            Self::Number(_) => return None,
        };
        let dtype = parts.next()?.into_dtype()?;
        let field = match parts.next() {
            None => Field::Scalar(name, dtype),
            Some(Self::List(dims)) if dims.len() <= DIMENSIONS_MAX => {
                let number = |dim| if let Self::Number(number) = dim { Some(number) } else { None };
                Field::Array(name, dtype, dims.into_iter().map(number).collect::<Option<_>>()?)
            }
            Some(_) => return None,
        };
        parts.next().is_none().then_some(field)
    }
}

impl Identity {
    /// The element type.
    pub fn dtype(&self) -> &Dtype {
        match self {
            Self::Dense { dtype, .. } | Self::Ragged { dtype } => dtype,
        }
    }

    /// The bytes of a dense record, or of a ragged record's element; an error says why there
    /// can be no such store.
    pub fn width(&self) -> Result<u64, String> {
        let item = self.dtype().item_bytes()?;
        let (bytes, what) = match self {
            Self::Ragged { .. } => (Some(item), "element"),
            Self::Dense { item_shape, .. } if item_shape.len() > DIMENSIONS_MAX => {
                return Err(format!("a record has at most {DIMENSIONS_MAX} axes"));
            }
            Self::Dense { item_shape, .. } => (shape_bytes(item, item_shape), "record"),
        };
        match bytes {
            Some(0) => Err(format!("a {what} of no bytes cannot be stored")),
            Some(bytes) if bytes <= MAX_RECORD_BYTES => Ok(bytes),
            _ => Err(format!("a {what} is over the limit of {MAX_RECORD_BYTES} bytes")),
        }
    }

    /// The bytes of `store.zr`.
    pub fn encode(&self) -> Vec<u8> {
        let encoded = match self.clone() {
            Self::Dense { dtype, item_shape } => {
                rmp_serde::to_vec_named(&DenseMap { dtype, item_shape })
            }
            Self::Ragged { dtype } => rmp_serde::to_vec_named(&RaggedMap { dtype }),
        };
        encoded.expect("strings and integers have a msgpack form")
    }

    /// The identity that `bytes` are, or what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() as u64 > IDENTITY_BYTES_MAX {
            return Err(format!(
                "{} bytes are over the limit of {IDENTITY_BYTES_MAX}",
                bytes.len()
            ));
        }
        let identity = match bytes.first() {
            Some(0x82) => {
                let DenseMap { dtype, item_shape } = from_msgpack(bytes)?;
                Self::Dense { dtype: into_dtype(dtype)?, item_shape }
            }
            Some(0x81) => {
                let RaggedMap { dtype } = from_msgpack(bytes)?;
                Self::Ragged { dtype: into_dtype(dtype)? }
            }
            _ => return Err("it is no msgpack map of one or two keys".into()),
        };
        // Whatever is not what we would write (other order, trailing bytes, longer forms of a
        // number) was not written by a store.
        if identity.encode() != bytes {
            return Err("it is not in the one form that a store writes".into());
        }
        identity.width()?;
        Ok(identity)
    }
}

fn into_dtype(node: Node) -> Result<Dtype, String> {
    node.into_dtype().ok_or_else(|| "its dtype is neither text nor a list of fields".into())
}

fn from_msgpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(bytes);
    // A level of nesting in the dtype is a list, a field and a name.
    decoder.set_max_depth(4 * DTYPE_DEPTH_MAX);
    T::deserialize(&mut decoder).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(name: &str) -> Dtype {
        Dtype::Plain(name.into())
    }

    #[test]
    fn identities_have_the_reference_bytes() {
        let dense = Identity::Dense { dtype: plain("<i4"), item_shape: vec![4] };
        assert_eq!(dense.encode(), b"\x82\xa5dtype\xa3<i4\xaaitem_shape\x91\x04");
        let ragged = Identity::Ragged { dtype: plain("|u1") };
        assert_eq!(ragged.encode(), b"\x81\xa5dtype\xa3|u1");
        for identity in [dense, ragged] {
            assert_eq!(Identity::decode(&identity.encode()), Ok(identity));
        }
    }

    #[test]
    fn a_nested_structured_identity_has_the_reference_bytes() {
        let bytes = b"\x82\xa5dtype\x93\x92\xa1x\xa3<i4\x93\xa1y\xa3<f4\x91\x02\x92\xa1p\x92\x92\
            \xa1a\xa3<i2\x92\xa1b\xa3>i2\xaaitem_shape\x90";
        let identity = Identity::decode(bytes).unwrap();
        assert_eq!(identity.width(), Ok(4 + 8 + 4));
        assert_eq!(identity.encode(), bytes);
    }

    #[test]
    fn widths_are_numpy_s() {
        let widths =
            [("<U3", 12), ("|S5", 5), ("<M8[ns]", 8), ("<m8", 8), ("|V7", 7), ("<c16", 16)];
        for (name, bytes) in widths {
            assert_eq!(plain(name).item_bytes(), Ok(bytes), "{name}");
        }
        for name in [
            "|O",
            "|O8",
            "i4",
            "<i3",
            "<M4",
            "",
            "<",
            "|T16",
            "<f99",
            "<U999999999999",
            "<M",
            "<Mé",
            "<M8x]",
            "<M8]",
            "<S+5",
            "<i04",
        ] {
            assert!(plain(name).item_bytes().is_err(), "{name}");
        }
    }

    #[test]
    fn what_no_store_writes_is_refused() {
        let refused: [&[u8]; 9] = [
            b"",
            b"\x80",
            b"\xc0",
            b"\x81\xa5dtype\xa2|O",
            b"\x81\xa5dtype\xa3<i4\x00",
            b"\x81\xa5shape\xa3<i4",
            b"\x82\xaaitem_shape\x91\x04\xa5dtype\xa3<i4",
            b"\x82\xa5dtype\xa3<i4\xaaitem_shape\x91\x00",
            b"\x81\xa5dtype\xdc\xff\xff",
        ];
        for bytes in refused {
            assert!(Identity::decode(bytes).is_err(), "{bytes:x?}");
        }
    }

    #[test]
    fn nesting_costs_no_more_than_its_bytes() {
        for depth in [8, 30, 200] {
            let mut bytes = b"\x81\xa5dtype".to_vec();
            for _ in 0..depth {
                bytes.extend_from_slice(b"\x91\x93\xa1a");
            }
            bytes.extend_from_slice(b"\xa3<i4");
            bytes.extend(std::iter::repeat_n(0x90, depth));
            // An empty shape is no shape that numpy writes, but it nests; what counts is that
            // the answer comes.
            let _ = Identity::decode(&bytes);
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        let mut bytes = b"\x81\xa5dtype".to_vec();
        for _ in 0..100_000 {
            bytes.extend_from_slice(b"\x91\x92\xa1a");
        }
        assert!(Identity::decode(&bytes).is_err());
    }
}
