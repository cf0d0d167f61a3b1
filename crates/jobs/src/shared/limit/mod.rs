//! Rate limits: how often a tool may be called, by one tenant, by each for itself, or by all together.
//!
//! A limit is a resting entity that nobody holds. A worker takes a *block* of tokens from it by one commit on the
//! version it has read, so that no token is given twice; what a dead worker took is lost. Each token has a moment from
//! which it is good and one until which it is: the virtual schedule of the limit spaces the former, and the latter bounds
//! how far the use may lag behind. So in every window, on the store's clock,
//! at most `rate × window + burst + block` calls begin, whatever the clocks of the workers say.
//!
//! Nobody takes a token that is good later than a few seconds from now. Who has to wait longer takes a *place* in the line
//! of the limit, which says about when to come back and promises nothing. [`mod@decide`] has the rules, and why.
//!
//! A limit for *each* tenant is no entity: it stands in the book, and whoever first calls the tool for a tenant makes that
//! tenant's limit from it ([`mod@each`]).
//!
//! Which limits there are stands in one more entity, the *limit book*: a worker reads one row every couple of seconds,
//! and a tool without a limit costs a look into memory.

pub mod book;
pub mod decide;
pub mod desk;
pub mod each;
pub mod model;
pub mod waiting;

pub use book::LimitBook;
pub use model::{Event, Limit, Spec, State, Token};
