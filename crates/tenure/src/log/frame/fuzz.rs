//! Frames, damaged: with checksums that are wrong, none is taken; with right ones, none does harm.

use std::str::FromStr;

use tenure_fuzz::{Fuzz, Random};

use super::tests::frame;
use super::*;
use crate::Token;
use crate::log::inspect;

/// Frames of every size that matters, and files of several.
fn corpus() -> Vec<Vec<u8>> {
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(2_000));
    let frames = [
        frame(1, &[r#"{"at":1,"do":"tick"}"#]),
        frame(2, &[]),
        frame(3, &[&long, "null", "[1,2,3]"]),
    ];
    let file = frames.concat();
    frames
        .iter()
        .map(|frame| frame.to_vec())
        .chain([file])
        .collect()
}

/// Right checksums for whatever the first line and the rest are.
fn reseal(input: &mut Vec<u8>) {
    let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
        return;
    };
    let body = input.split_off(end + 1);
    let line = String::from_utf8_lossy(&input[..end]).into_owned();
    let line = line
        .rsplit_once(",\"check\":")
        .map_or(&*line, |(line, _)| line);
    let checksum = String::from(Checksum::of(&body));
    let line = match line.rsplit_once("\"body\":\"") {
        Some((before, _)) => format!("{before}\"body\":\"{checksum}\""),
        None => line.to_owned(),
    };
    *input = line.clone().into_bytes();
    input.extend_from_slice(check_of(line.as_bytes()).as_bytes());
    input.push(b'\n');
    input.extend_from_slice(&body);
}

#[test]
fn whatever_is_read_of_a_frame_is_what_was_written() {
    let fuzz = Fuzz::new("frames", corpus()).repaired_by(reseal);
    fuzz.run(|input| {
        let file = Bytes::copy_from_slice(input);
        if let Ok(whole) = decode(&file) {
            assert_eq!(whole.lines().count(), whole.count());
            assert!(whole.header.seq < u64::MAX && whole.header.takeover < u64::MAX);
        }
        let mut at = 0;
        while at < file.len() {
            match find(&file, at) {
                Found::Frame { end, .. } => {
                    assert!(end > at && end <= file.len());
                    at = end;
                }
                Found::Torn | Found::End | Found::Damaged(_) | Found::Newer(_) => break,
            }
        }
    });
}

#[test]
fn up_to_three_changed_bits_are_always_noticed() {
    let mut random = Random::new(7);
    for whole in corpus().into_iter().take(3) {
        for _ in 0..2_000 {
            let mut damaged = whole.clone();
            for _ in 0..=random.index(3) {
                let bit = random.index(damaged.len() * 8);
                damaged[bit / 8] ^= 1 << (bit % 8);
            }
            let is_same = damaged == whole;
            assert_eq!(decode(&damaged.into()).is_ok(), is_same);
        }
    }
}

#[test]
fn a_length_that_cannot_be_is_damage() {
    let mut hostile = frame(1, &["null"]).to_vec();
    let text = String::from_utf8(hostile.clone()).unwrap();
    hostile = text
        .replace("\"bytes\":5", "\"bytes\":18446744073709551615")
        .into();
    reseal(&mut hostile);
    let hostile = Bytes::from(hostile);
    assert!(decode(&hostile).is_err());
    assert!(matches!(find(&hostile, 0), Found::Damaged(_)));
}

#[test]
fn names_and_tokens_read_back() {
    let corpus = [
        "log/00000000000000000007",
        "segments/00000000000000000002-000001",
        "snapshot/00000000000000000009-0123456789abcdef",
        "a57bb60065aa4199bdc82000c308d838:2",
    ];
    Fuzz::new("names in a log", corpus).run(|input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(name) = inspect::Name::from_str(&text) {
            assert_eq!(name.to_string(), text);
            assert!(!text.contains(".."));
        }
        if let Ok(token) = text.parse::<Token>() {
            assert_eq!(token.to_string().parse(), Ok(token));
        }
    });
}
