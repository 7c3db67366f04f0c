//! Frames are read as they were written, and what is torn is told from what is damaged.

use super::*;

/// How many zeros a file may have behind its last frame.
const ZEROS: [usize; 4] = [0, 1, 700, 5000];

fn place(seq: u64) -> Cursor {
    Cursor {
        seq,
        position: Position(seq * 10),
        takeover: 3,
        term: Term(5),
        incarnation: Incarnation(0xa),
        number: 7,
        rules: Rules::FIRST,
    }
}

pub(super) fn frame(seq: u64, lines: &[&str]) -> Bytes {
    encode(Kind::Commit, place(seq), None, lines)
}

#[test]
fn the_stored_form_is_stable() {
    let text = concat!(
        r#"{"format":1,"kind":"commit","seq":2,"position":20,"takeover":3,"term":5,"#,
        r#""incarnation":"0000000000000000000000000000000a","number":7,"count":2,"bytes":13,"#,
        r#""body":"fecc8291","check":"fb157386"}"#,
        "\n{\"a\":1}\nnull\n"
    );
    let stored = frame(2, &[r#"{"a":1}"#, "null"]);
    let stored = std::str::from_utf8(&stored).unwrap();
    assert_eq!(
        stored.lines().skip(1).collect::<Vec<_>>(),
        ["{\"a\":1}", "null"]
    );
    assert_eq!(stored, text);
    let read = decode(&Bytes::copy_from_slice(stored.as_bytes())).unwrap();
    assert_eq!(
        read.lines().collect::<Vec<_>>(),
        [&b"{\"a\":1}"[..], b"null"]
    );
    assert_eq!((read.header.seq, read.count()), (2, 2));
}

#[test]
fn no_bit_changes_unnoticed() {
    let lines = ["{\"a\": 1}", "{\"b\": \"x y z\"}"];
    let whole = frame(1, &lines);
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let flipped = Bytes::from(flipped);
        assert!(decode(&flipped).is_err(), "bit {bit}");
        // Not taken for the remains of a crash either, though it is the last of its file.
        for zeros in ZEROS {
            let file = [&whole[..], &flipped[..], &vec![0; zeros]].concat();
            let found = find(&file.into(), whole.len());
            assert!(matches!(found, Found::Damaged(_)), "bit {bit}: {found:?}");
        }
    }
}

#[test]
fn every_beginning_of_a_frame_at_the_end_is_torn_and_no_object() {
    let whole = frame(1, &["{\"a\":1}", "{\"b\":2}"]);
    for end in 1..whole.len() {
        for zeros in ZEROS {
            let file = [&whole[..], &whole[..end], &vec![0; zeros]].concat();
            let found = find(&file.into(), whole.len());
            assert_eq!(found, Found::Torn, "{end} bytes, {zeros} zeros");
        }
        assert!(decode(&whole.slice(..end)).is_err());
    }
    assert!(decode(&Bytes::new()).is_err());
}

#[test]
fn zeros_behind_the_last_frame_are_its_end_and_nothing_else_is() {
    let whole = frame(1, &["1"]);
    for zeros in ZEROS {
        let mut file = [&whole[..], &vec![0; zeros]].concat();
        let Found::Frame { end, .. } = find(&file.clone().into(), 0) else {
            panic!("the frame is whole");
        };
        assert_eq!(find(&file.clone().into(), end), Found::End);
        if let Some(last) = file[end..].last_mut() {
            *last = 1;
            let found = find(&file.into(), end);
            assert_ne!(found, Found::End, "{zeros} zeros");
        }
    }
}

#[test]
fn sectors_that_were_never_written_are_torn_unless_something_follows() {
    let long = "x".repeat(3000);
    let first = frame(1, &["1"]);
    let second = frame(2, &[&long]);
    let mut file = [&first[..], &second[..]].concat();
    let (start, end) = (first.len(), file.len());
    for sector in (start / SECTOR_BYTES)..=(end / SECTOR_BYTES) {
        let from = (sector * SECTOR_BYTES).max(start);
        let to = ((sector + 1) * SECTOR_BYTES).min(end);
        let mut torn = file.clone();
        torn[from..to].fill(0);
        for zeros in ZEROS {
            let file = [&torn[..], &vec![0; zeros]].concat();
            assert_eq!(find(&file.into(), start), Found::Torn, "{from}..{to}");
        }
        // A sync lies between two frames, so this is no crash.
        torn.extend_from_slice(&frame(3, &["3"]));
        assert!(matches!(find(&torn.into(), start), Found::Damaged(_)));
    }
    // Half a sector of zeros is no work of a disk.
    let border = (start / SECTOR_BYTES + 2) * SECTOR_BYTES;
    file[border..border + SECTOR_BYTES / 2].fill(0);
    for zeros in ZEROS {
        let file = [&file[..], &vec![0; zeros]].concat();
        assert!(matches!(find(&file.into(), start), Found::Damaged(_)));
    }
}

#[test]
fn a_record_is_a_line() {
    for bad in [&b""[..], b"a\nb", b"a\0b"] {
        assert!(check_line(bad).is_err());
    }
    assert!(check_line("{\"text\":\"ü\\n\"}".as_bytes()).is_ok());
}

#[test]
fn what_is_newer_is_not_called_damaged() {
    let rules = Rules::LATEST.0 + 1;
    let ruled = format!(r#"{{"format":2,"rules":{rules},"new":true"#);
    let told = format!("it follows rules {rules}");
    for (line, newer) in [
        (r#"{"format":3,"new":true"#, "it has format 3"),
        (&ruled, &told),
    ] {
        let stored = [line.as_bytes(), check_of(line.as_bytes()).as_bytes(), b"\n"].concat();
        let Err(Unread::Newer(what)) = decode(&stored.clone().into()) else {
            panic!("{line} is newer");
        };
        assert!(what.starts_with(newer), "{what}");
        for zeros in ZEROS {
            let file = [&stored[..], &vec![0; zeros]].concat();
            assert_eq!(find(&file.into(), 0), Found::Newer(what.clone()));
        }
    }
    for line in [
        r#"{"format":2,"old":true"#,
        r#"{"format":1,"rules":2"#,
        r#"{"format":0"#,
    ] {
        let stored = [line.as_bytes(), check_of(line.as_bytes()).as_bytes(), b"\n"].concat();
        let read = decode(&stored.into());
        assert!(matches!(read, Err(Unread::Damaged(_))), "{line}");
    }
}

#[test]
fn later_rules_and_the_state_stand_in_the_header() {
    let place = Cursor {
        rules: Rules::SECOND,
        ..place(2)
    };
    let applied = Applied {
        seq: 1,
        digest: Digest(0xabc),
    };
    let lines = Lines::of(&["null"]);
    let (stored, header) = lines.seal(Kind::Commit, place, None, Some(applied));
    let text = std::str::from_utf8(&stored).unwrap();
    let said = r#""rules":2,"applied":{"seq":1,"digest":"0000000000000abc"},"count":1"#;
    assert!(text.starts_with(r#"{"format":2,"#), "{text}");
    assert!(text.contains(said), "{text}");
    assert_eq!(decode(&stored).unwrap().header, header);
}
