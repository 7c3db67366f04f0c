//! Mutations of real inputs.
//!
//! Some mutations work on bytes, some on lines, and some on the tokens of JSON: words, numbers, quoted text and
//! punctuation, which also suit URLs, cron expressions and command lines. One input gets one to six mutations.

use std::ops::Range;

use crate::Random;

/// Numbers that tend to break programs.
const NUMBERS: [&str; 22] = [
    "0",
    "1",
    "-1",
    "-0",
    "127",
    "128",
    "255",
    "256",
    "65535",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211455",
    "0.1",
    "1e308",
    "1e999",
];

/// Texts that tend to break programs, including JSON values.
const TEXTS: [&str; 20] = [
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\\n\"",
    "\"../..\"",
    "\u{0}",
    "\u{feff}",
    "\u{202e}",
    "é",
    "\n",
    "\r\n",
    "%00",
    "%2e%2e%2f",
    "--",
    "9999-12-31T23:59:59Z",
    "-009999-01-01T00:00:00Z",
];

/// The most bytes that mutations add to an input.
const GROWTH_MAX: usize = 1 << 16;

/// A mutated input of the corpus.
#[must_use]
pub fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = random.pick(corpus).clone();
    let length_max = input.len() + GROWTH_MAX;
    for _ in 0..=random.index(6) {
        match random.index(6) {
            0 | 1 => of_bytes(&mut input, random),
            2..=4 => of_tokens(&mut input, corpus, random),
            _ => of_lines(&mut input, corpus, random),
        }
        input.truncate(length_max);
    }
    input
}

fn of_bytes(input: &mut Vec<u8>, random: &mut Random) {
    let at = random.index(input.len() + 1);
    let end = (at + 1 + random.index(8)).min(input.len());
    match random.index(6) {
        0 if at < input.len() => input[at] ^= 1 << random.index(8),
        1 if at < input.len() => input[at] = *random.pick(&[0, 1, b' ', b'"', 0x7f, 0x80, 0xff]),
        2 => input.insert(at, *random.pick(b"\0\n\"\\{}[],:-+.e/%&=#?@ \xc3\xff")),
        3 => drop(input.drain(at..end)),
        4 => input.truncate(at),
        _ => {
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
    }
}

fn of_tokens(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let all = tokens(input);
    if all.is_empty() {
        return input.extend_from_slice(random.pick(&TEXTS).as_bytes());
    }
    let mut token = random.pick(&all).clone();
    if random.percent(50) {
        // Punctuation makes up most tokens, and is the least interesting.
        let words: Vec<_> = all
            .iter()
            .filter(|token| is_word(&input[(*token).clone()]))
            .collect();
        if !words.is_empty() {
            token = (*random.pick(&words)).clone();
        }
    }
    let other = random.pick(corpus);
    let replacement: Vec<u8> = match random.index(9) {
        0..=2 => random.pick(&NUMBERS).as_bytes().to_vec(),
        3 => random.pick(&TEXTS).as_bytes().to_vec(),
        4 => {
            let theirs = tokens(other);
            if theirs.is_empty() {
                return;
            }
            other[random.pick(&theirs).clone()].to_vec()
        }
        5 => Vec::new(),
        6 => input[token.clone()].repeat(2 + random.index(3)),
        7 => nested(&input[token.clone()], random),
        _ => lengthened(&input[token.clone()], random),
    };
    input.splice(token, replacement);
}

/// The value nested in many others.
fn nested(value: &[u8], random: &mut Random) -> Vec<u8> {
    let depth = *random.pick(&[1, 2, 100, 127, 128, 129, 5_000]);
    let (open, close) = *random.pick(&[("[", "]"), ("{\"a\":", "}")]);
    [
        open.repeat(depth).as_bytes(),
        value,
        close.repeat(depth).as_bytes(),
    ]
    .concat()
}

/// The token made much longer, inside its quotes if it has any.
fn lengthened(token: &[u8], random: &mut Random) -> Vec<u8> {
    let at = token.len() / 2;
    let filler = random.pick(&["x", "0", "é", ".", " ", "\\u0000"]);
    let length = *random.pick(&[32, 200, 201, 256, 1_024, 20_000]);
    [&token[..at], filler.repeat(length).as_bytes(), &token[at..]].concat()
}

fn of_lines(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let mut lines: Vec<Vec<u8>> = split_lines(input);
    let at = random.index(lines.len());
    match random.index(4) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, lines[at].clone()),
        2 => {
            let other = random.index(lines.len());
            lines.swap(at, other);
        }
        _ => {
            let other: &Vec<u8> = random.pick(corpus);
            let theirs = split_lines(other);
            lines.insert(at, random.pick(&theirs).clone());
        }
    }
    *input = lines.concat();
}

/// The lines, each with its newline; at least one.
fn split_lines(input: &[u8]) -> Vec<Vec<u8>> {
    let lines = input.split_inclusive(|&byte| byte == b'\n');
    let mut lines: Vec<Vec<u8>> = lines.map(<[u8]>::to_vec).collect();
    if lines.is_empty() {
        lines.push(Vec::new());
    }
    lines
}

fn is_word(token: &[u8]) -> bool {
    token.len() > 1 || token.first().is_some_and(u8::is_ascii_alphanumeric)
}

/// The tokens: quoted text, words and numbers, and every other byte alone.
fn tokens(input: &[u8]) -> Vec<Range<usize>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < input.len() {
        let rest = &input[at..];
        let length = match rest[0] {
            b'"' => quoted(rest),
            byte if belongs(byte) => rest.iter().take_while(|&&byte| belongs(byte)).count(),
            _ => 1,
        };
        tokens.push(at..at + length);
        at += length;
    }
    tokens
}

fn belongs(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.')
}

fn quoted(rest: &[u8]) -> usize {
    let mut escaped = false;
    for (at, &byte) in rest.iter().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return at + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    1
}
