//! The built-in tools against real sockets and real programs. Nothing here sleeps in order to be right: a test
//! that has to be in the middle of something holds the other end of the connection, or waits for what the call shows.

mod command;
mod command_end;
mod command_sandbox;
mod egress;
mod http;
mod http_redirect;
mod http_stop;
mod llm;
mod support;
