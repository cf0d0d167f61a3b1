//! Frames come back as they went, and bytes that are no frame are refused without harm.

use crate::support::{START, file, some_facts, some_path};
use proptest::prelude::*;
use tenure_files::{
    time::{Interval, Tick},
    wire::{
        Cause, Finding, Frame, Lane, Listed, Listing, Look, Moved, Outcome, Preamble, Record,
        RootIdentity, Silent, Tier, WireError, read_body,
    },
};
use tenure_kernel::ids::EntityId;

fn some_interval() -> impl Strategy<Value = Interval> {
    (0u64..1_000_000, 0u64..10_000).prop_map(|(after, length)| Interval {
        begin: START.plus(after),
        end: START.plus(after + length),
    })
}

fn some_finding() -> impl Strategy<Value = Finding> {
    prop_oneof![
        some_facts().prop_map(Finding::Exists),
        Just(Finding::Missing),
        any::<u32>().prop_map(Finding::Failed),
    ]
}

fn some_record() -> impl Strategy<Value = Record> {
    let causes = [Cause::Asked, Cause::Event, Cause::Written, Cause::Closed];
    let ends = [Some(Outcome::Complete), Some(Outcome::Racy), Some(Outcome::Partial), None];
    let names = prop::collection::btree_map(
        prop::collection::vec(prop::sample::select(b"ab\xffC-_".to_vec()), 1..9),
        prop::option::of(some_facts()),
        0..12,
    );
    prop_oneof![
        (
            some_path(4),
            some_finding(),
            any::<bool>(),
            prop::sample::select(causes.to_vec()),
            some_interval()
        )
            .prop_map(|(path, finding, forced, cause, during)| {
                Record::Look(Look { path, finding, forced, cause, during })
            }),
        (some_path(4), some_interval(), some_facts(), names, prop::sample::select(ends.to_vec()))
            .prop_map(|(path, during, directory, names, end)| {
                let entries = names.into_iter().map(|(name, facts)| Listed { name, facts });
                let is_whole = end == Some(Outcome::Complete);
                Record::Listing(Listing {
                    path,
                    during,
                    directory,
                    entries: entries.collect(),
                    end,
                    is_whole,
                })
            }),
        (some_path(4), some_interval(), some_facts()).prop_map(|(path, during, directory)| {
            Record::Silent(Silent { path, during, directory })
        }),
        (some_path(3), some_path(3), some_finding(), some_finding(), some_interval()).prop_map(
            |(from, to, at_from, at_to, during)| {
                Record::Moved(Moved { from, to, at_from, at_to, during })
            }
        ),
        (some_path(3), any::<bool>(), some_interval())
            .prop_map(|(path, subtree, during)| Record::Dirty { path, subtree, during }),
        (some_path(3), any::<bool>(), some_interval())
            .prop_map(|(path, watched, during)| Record::Cover { path, watched, during }),
        (any::<u64>(), any::<u64>()).prop_map(|(first, last)| Record::Skipped { first, last }),
    ]
}

fn some_frame() -> impl Strategy<Value = Frame> {
    let lanes = [Lane::Live, Lane::Walk];
    let tiers = [Tier::Realtime, Tier::Snapshot, Tier::Audit, Tier::Scan, Tier::Region];
    let root = (any::<u64>(), any::<u64>(), prop::option::of(any::<i64>()));
    (
        prop::sample::select(lanes.to_vec()),
        prop::sample::select(tiers.to_vec()),
        any::<u64>(),
        prop::option::of(1u8..),
        (0u64..1 << 40, 0u64..1 << 40, root, any::<u64>()),
        prop::collection::vec(some_record(), 0..24),
    )
        .prop_map(|(lane, tier, sequence, walk, (slack, cache, root, excludes), records)| {
            Frame {
                lane,
                tier,
                sequence,
                tree: EntityId::from_bytes([7; 16]),
                walk: walk.map(|walk| EntityId::from_bytes([walk; 16])),
                preamble: Preamble {
                    base: START,
                    slack,
                    cache,
                    root: RootIdentity { magic: root.0, inode: root.1, birth: root.2 },
                    excludes,
                },
                records,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn frames_come_back_as_they_went(frames in prop::collection::vec(some_frame(), 0..4)) {
        let body: Vec<u8> = frames.iter().flat_map(|frame| frame.write().unwrap()).collect();
        prop_assert_eq!(read_body(&body).unwrap(), frames);
    }

    #[test]
    fn a_frame_that_is_cut_is_refused(frame in some_frame(), keep in 0.0f64..1.0) {
        let bytes = frame.write().unwrap();
        let cut = (bytes.len() as f64 * keep) as usize;
        let refused = matches!(Frame::read(&bytes[..cut]), Err(WireError::Truncated { .. }));
        prop_assert!(refused);
    }

    /// With a right checksum, so that everything behind it is reached.
    #[test]
    fn arbitrary_records_are_read_or_refused_and_never_panic(
        payload in prop::collection::vec(any::<u8>(), 0..400),
        rows in 0u32..40,
    ) {
        let bytes = forged(&payload, rows, payload.len() as u32, 0);
        if let Ok((frame, used)) = Frame::read(&bytes) {
            prop_assert_eq!(used, bytes.len());
            prop_assert_eq!(frame.records.iter().map(Record::rows).sum::<usize>(), rows as usize);
        }
    }

    #[test]
    fn changed_records_are_read_or_refused_and_never_panic(
        frame in some_frame(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let bytes = frame.write().unwrap();
        if bytes[5] == 0 && bytes.len() > 64 {
            let mut payload = bytes[64..].to_vec();
            for (at, byte) in changes {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
            let rows = u32::from_le_bytes(bytes[48..52].try_into().unwrap());
            let _ = Frame::read(&forged(&payload, rows, payload.len() as u32, 0));
        }
    }
}

fn forged(payload: &[u8], rows: u32, raw: u32, codec: u8) -> Vec<u8> {
    let mut bytes = b"TNFR".to_vec();
    bytes.extend_from_slice(&[1, codec, 1, 2]);
    bytes.extend_from_slice(&[0; 40]);
    bytes.extend_from_slice(&rows.to_le_bytes());
    bytes.extend_from_slice(&raw.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes);
    hasher.update(payload);
    bytes.extend_from_slice(&hasher.finalize().to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn listing_of(count: usize) -> Frame {
    let entries = (0..count).map(|i| Listed {
        name: format!("data_{i:06}.dat").into_bytes(),
        facts: Some(file(
            90_000 + i as u64,
            1_048_576 + i as u64 % 977,
            1_790_000_000_000_000_000 + i as i64 * 7_919_333,
        )),
    });
    let listing = Listing {
        path: b"upload/submit/batch".to_vec(),
        during: Interval { begin: START, end: START.plus(3) },
        directory: file(1, 0, 5),
        entries: entries.collect(),
        end: Some(Outcome::Complete),
        is_whole: true,
    };
    Frame {
        lane: Lane::Walk,
        tier: Tier::Snapshot,
        sequence: 1,
        tree: EntityId::from_bytes([7; 16]),
        walk: None,
        preamble: Preamble { base: START, ..Preamble::default() },
        records: vec![Record::Listing(listing)],
    }
}

#[test]
fn every_damaged_byte_is_noticed() {
    let bytes = listing_of(40).write().unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x41;
        assert!(Frame::read(&damaged).is_err(), "byte {at}");
    }
    assert!(Frame::read(&bytes).is_ok());
}

#[test]
fn a_frame_that_lies_about_its_length_is_refused() {
    let payload = [0u8; 16];
    for (rows, raw, codec) in
        [(1 << 20, 16, 0), (1, 1 << 21, 1), (0, 17, 0), (0, 15, 0), (0, 1 << 20, 1), (5, 16, 0)]
    {
        let refused = Frame::read(&forged(&payload, rows, raw, codec)).unwrap_err();
        assert!(!matches!(refused, WireError::Checksum), "{refused}");
    }
    // The length of what follows points behind the end.
    let mut bytes = forged(&payload, 0, 16, 0);
    bytes[56..60].copy_from_slice(&17u32.to_le_bytes());
    assert_eq!(Frame::read(&bytes), Err(WireError::Truncated { at: bytes.len() }));
}

#[test]
fn a_listing_of_more_rows_than_a_frame_may_have_is_refused_by_both_sides() {
    assert!(listing_of(16_383).write().is_ok());
    let refused = listing_of(16_384).write().unwrap_err();
    assert_eq!(refused, WireError::TooMany { what: "rows of a frame", is: 16_385, max: 16_384 });
    assert!(refused.to_string().contains("send smaller frames"));
}

#[test]
fn a_request_has_sixteen_frames_at_most() {
    let one = listing_of(1).write().unwrap();
    assert_eq!(read_body(&one.repeat(16)).unwrap().len(), 16);
    assert!(matches!(read_body(&one.repeat(17)), Err(WireError::TooMany { is: 17, .. })));
    let behind = [one.as_slice(), b"more"].concat();
    assert_eq!(read_body(&behind), Err(WireError::Truncated { at: behind.len() }));
}

#[test]
fn names_that_lead_out_of_the_root_are_refused() {
    let mut frame = listing_of(1);
    let Record::Listing(listing) = &mut frame.records[0] else { unreachable!() };
    listing.path = b"a/../../etc".to_vec();
    let refused = Frame::read(&frame.write().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("`.` or `..`"), "{refused}");
}

#[test]
fn names_of_a_listing_ascend() {
    let mut frame = listing_of(3);
    let Record::Listing(listing) = &mut frame.records[0] else { unreachable!() };
    listing.entries.swap(0, 2);
    assert!(Frame::read(&frame.write().unwrap()).unwrap_err().to_string().contains("ascending"));
}

#[test]
fn frames_of_another_version_say_so() {
    let mut bytes = listing_of(1).write().unwrap();
    bytes[4] = 9;
    assert_eq!(Frame::read(&bytes), Err(WireError::Version { version: 9 }));
    assert_eq!(Frame::read(&[b'x'; 64]), Err(WireError::NotAFrame { at: 0 }));
}

/// Measured, with a bound: `cargo nextest run -p tenure-files -E 'test(/bytes_of_a_row/)' --no-capture`.
#[test]
fn bytes_of_a_row_on_the_wire() {
    let bytes = listing_of(16_000).write().unwrap().len() as f64 / 16_000.0;
    println!("{bytes:.1} bytes a row on the wire, names included");
    assert!(bytes < 30.0, "{bytes}");
    assert!(Tick(0) < START);
}
