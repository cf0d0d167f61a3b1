//! Expressions, worked out on JSON. The grammar, comparisons and most filters are those of the crate `minijinja`; the
//! walk over the tree is ours, because its own machine counts instructions and not bytes: `"a" * 100000000`,
//! `"a" | indent(10000000000)` or a chain of `replace` are few instructions and all the memory there is, the first even
//! while an expression is only compiled. A plan may come from anybody, so here every operator and every filter pays for
//! what it reads and for what it makes ([`limits::WORK_BYTES_MAX`]), before the next one begins. Whatever could make
//! more than it was given times a small number is written here with its size worked out first, or is not there.
//!
//! Chains to the left (`a + b + c`, `x | f | g`) are walked in a loop: four thousand bytes of them would be more calls
//! within calls than a stack has room for. What is nested to the right is counted ([`limits::OPERATIONS_DEEP_MAX`]); how
//! deep an expression may be written is bounded before it is read (`expr::parse`).

use super::{
    expr::{FILTERS, Scope, TESTS, spent_all},
    limits,
};
use minijinja::{
    Environment, ErrorKind, Expression, UndefinedBehavior,
    machinery::ast::{BinOpKind, CallArg, CompareOpKind, Expr, UnaryOpKind},
    value::{Kwargs, Serde, ValueKind},
};
use serde_json::{Map, Value};
use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock};

pub(super) static JINJA: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    for function in ["range", "dict", "debug", "namespace"] {
        env.remove_global(function);
    }
    env
});

/// Operations that are left to Jinja, once what they get has been paid for. None gives more than it got.
static OPERATIONS: LazyLock<BTreeMap<&'static str, Expression<'static, 'static>>> =
    LazyLock::new(|| {
        let all = [
            "a + b", "a - b", "a * b", "a / b", "a // b", "a % b", "a ** b", "-a", "a == b",
            "a != b", "a < b", "a <= b", "a > b", "a >= b", "a in b", "a[b:c:d]",
        ];
        // These texts are written here, and a test evaluates each of them.
        let compile = |text| JINJA.compile_expression(text).expect("an expression of our own");
        all.into_iter().map(|text| (text, compile(text))).collect()
    });

/// What one value costs beside its text.
const VALUE_COST: usize = 32;

/// Why there is no value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Something that it needs is not there: the output of this step, if it is that.
    Undefined(Option<String>),
    /// In words.
    Failed(String),
}

type Got<'s> = Result<Option<Cow<'s, Value>>, Fault>;

/// The value of an expression; `None` where it is undefined.
pub(super) fn evaluate(expr: &Expr<'_>, scope: &Scope) -> Result<Option<Value>, Fault> {
    let most = limits::WORK_BYTES_MAX.min(scope.left());
    let mut work = Work { scope, left: most, deep: 0, absent: None };
    let got = work.eval(expr);
    scope.spend(most - work.left);
    match (got?, work.absent) {
        (None, Some(step)) => Err(Fault::Undefined(Some(step))),
        (got, _) => Ok(got.map(Cow::into_owned)),
    }
}

struct Work<'s> {
    scope: &'s Scope,
    left: usize,
    /// Operations that are not over.
    deep: usize,
    /// Why the last value that was not there was not: the step that has no output.
    absent: Option<String>,
}

fn failed<T>(why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Failed(why.into()))
}

fn made<'s>(value: Value) -> Got<'s> {
    Ok(Some(Cow::Owned(value)))
}

/// Whether a value holds: empty, zero, null and false do not.
pub(super) fn holds(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(b) => *b,
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::String(s) => !s.is_empty(),
        Value::Array(a) => !a.is_empty(),
        Value::Object(o) => !o.is_empty(),
    }
}

/// A value within text: a text as it is, all else as JSON.
fn text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

fn number(value: &Value) -> bool {
    matches!(value, Value::Number(_) | Value::Bool(_))
}

impl<'s> Work<'s> {
    fn pay(&mut self, bytes: usize) -> Result<(), Fault> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None if self.scope.left() < limits::WORK_BYTES_MAX => return failed(spent_all()),
            None => {
                let max = limits::WORK_BYTES_MAX;
                return failed(format!("it works on more than {max} bytes: do it in a tool"));
            }
        }
        Ok(())
    }

    fn pay_for(&mut self, value: &Value) -> Result<(), Fault> {
        self.pay(VALUE_COST)?;
        match value {
            Value::String(text) => self.pay(text.len()),
            Value::Array(items) => items.iter().try_for_each(|v| self.pay_for(v)),
            Value::Object(members) => members.iter().try_for_each(|(name, v)| {
                self.pay(name.len())?;
                self.pay_for(v)
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    /// What must be there.
    fn there(&self, got: Option<Cow<'s, Value>>) -> Result<Cow<'s, Value>, Fault> {
        got.ok_or_else(|| Fault::Undefined(self.absent.clone()))
    }

    fn eval(&mut self, expr: &Expr<'_>) -> Got<'s> {
        if self.deep == limits::OPERATIONS_DEEP_MAX {
            let max = limits::OPERATIONS_DEEP_MAX;
            return failed(format!("its operations are nested deeper than {max} levels"));
        }
        self.deep += 1;
        let got = self.chain(expr);
        self.deep -= 1;
        got
    }

    fn chain(&mut self, expr: &Expr<'_>) -> Got<'s> {
        let mut step = None;
        let (mut spine, mut at) = (Vec::new(), expr);
        while let Some(next) = left_of(at) {
            spine.push(at);
            at = next;
        }
        let mut got = match (at, spine.last()) {
            (Expr::Var(var), Some(next)) if var.id == "steps" => {
                let id = match next {
                    Expr::GetAttr(get) => get.name.to_owned(),
                    Expr::GetItem(get) => text(&*self.value(&get.subscript_expr)?).into_owned(),
                    _ => return failed("`steps` alone says not which step"),
                };
                spine.pop();
                self.absent = None;
                let found = self.scope.steps.get(&id).map(|step| Cow::Borrowed(&**step));
                step = Some(id);
                found
            }
            _ => self.base(at)?,
        };
        for node in spine.into_iter().rev() {
            self.pay(VALUE_COST)?;
            let of = step.take().filter(|_| reads_output(node));
            got = self.apply(node, got)?;
            if got.is_none() {
                self.absent = of;
            }
        }
        Ok(got)
    }

    fn value(&mut self, expr: &Expr<'_>) -> Result<Cow<'s, Value>, Fault> {
        let got = self.eval(expr)?;
        self.there(got)
    }

    /// What has nothing to its left.
    fn base(&mut self, expr: &Expr<'_>) -> Got<'s> {
        self.pay(VALUE_COST)?;
        match expr {
            Expr::Var(var) => {
                self.absent = None;
                Ok(self.scope.names.get(var.id).map(|v| Cow::Borrowed(&**v)))
            }
            Expr::Const(value) => self.native(&value.value, 0).map(|v| v.map(Cow::Owned)),
            Expr::UnaryOp(op) => {
                let value = self.value(&op.expr)?;
                match op.op {
                    UnaryOpKind::Not => made(Value::Bool(!holds(&value))),
                    UnaryOpKind::Neg if number(&value) => self.operation("-a", &[&value]),
                    UnaryOpKind::Neg => failed("`-` is for numbers"),
                }
            }
            Expr::IfExpr(choice) => {
                match (holds(&*self.value(&choice.test_expr)?), &choice.false_expr) {
                    (true, _) => self.eval(&choice.true_expr),
                    (false, Some(other)) => self.eval(other),
                    (false, None) => {
                        self.absent = None;
                        Ok(None)
                    }
                }
            }
            Expr::List(list) => self.list(&list.items),
            Expr::Tuple(tuple) => self.list(&tuple.items),
            Expr::Map(map) => {
                let mut object = Map::new();
                for (key, value) in map.keys.iter().zip(&map.values) {
                    let key = text(&*self.value(key)?).into_owned();
                    let value = self.value(value)?;
                    self.pay_for(&value)?;
                    object.insert(key, value.into_owned());
                }
                made(Value::Object(object))
            }
            _ => failed("expressions call no functions"),
        }
    }

    fn list(&mut self, items: &[Expr<'_>]) -> Got<'s> {
        let mut list = Vec::new();
        for item in items {
            let value = self.value(item)?;
            self.pay_for(&value)?;
            list.push(value.into_owned());
        }
        made(Value::Array(list))
    }

    /// One node of a chain, with what stands to its left.
    fn apply(&mut self, node: &Expr<'_>, got: Option<Cow<'s, Value>>) -> Got<'s> {
        match node {
            Expr::GetAttr(get) => Ok(member(self.there(got)?, get.name)),
            Expr::GetItem(get) => {
                let (from, at) = (self.there(got)?, self.value(&get.subscript_expr)?);
                Ok(match &*at {
                    Value::String(name) => member(from, name),
                    at => at.as_i64().and_then(|at| item(from, at)),
                })
            }
            Expr::Slice(slice) => {
                let from = self.there(got)?;
                let mut end = |end: &Option<Expr<'_>>| match end {
                    Some(end) => self.value(end).map(Cow::into_owned),
                    None => Ok(Value::Null),
                };
                let (b, c, d) = (end(&slice.start)?, end(&slice.stop)?, end(&slice.step)?);
                self.operation("a[b:c:d]", &[&from, &b, &c, &d])
            }
            Expr::BinOp(op) => self.binary(op.op, &op.right, got),
            Expr::Compare(chain) => {
                let mut left = self.there(got)?;
                for next in &chain.ops {
                    let right = self.value(&next.expr)?;
                    if !self.compare(next.op, &left, &right)? {
                        return made(Value::Bool(false));
                    }
                    left = right;
                }
                made(Value::Bool(true))
            }
            Expr::Filter(filter) => {
                let absent = self.absent.take();
                let (args, named) = self.args(&filter.args)?;
                self.absent = absent;
                self.filter(filter.name, got, args, named)
            }
            Expr::Test(test) => {
                let absent = self.absent.take();
                let (args, _) = self.args(&test.args)?;
                self.absent = absent;
                self.test(test.name, got.as_deref(), &args).map(|b| Some(Cow::Owned(b.into())))
            }
            _ => failed("it can not be read"),
        }
    }

    fn binary(&mut self, op: BinOpKind, right: &Expr<'_>, got: Option<Cow<'s, Value>>) -> Got<'s> {
        let left = self.there(got)?;
        match op {
            BinOpKind::ScAnd if !holds(&left) => return Ok(Some(left)),
            BinOpKind::ScOr if holds(&left) => return Ok(Some(left)),
            BinOpKind::ScAnd | BinOpKind::ScOr => return self.value(right).map(Some),
            _ => {}
        }
        let right = self.value(right)?;
        let sign = match op {
            BinOpKind::Concat => {
                self.pay_for(&left)?;
                self.pay_for(&right)?;
                return made(Value::String(format!("{}{}", text(&left), text(&right))));
            }
            BinOpKind::Add => match (&*left, &*right) {
                (Value::String(a), Value::String(b)) => {
                    self.pay(a.len() + b.len())?;
                    return made(Value::String(format!("{a}{b}")));
                }
                (Value::Array(a), Value::Array(b)) => {
                    self.pay_for(&left)?;
                    self.pay_for(&right)?;
                    return made(Value::Array([a.as_slice(), b.as_slice()].concat()));
                }
                (a, b) if number(a) && number(b) => "a + b",
                _ => return failed("`+` is for two numbers, two texts or two lists"),
            },
            BinOpKind::Sub => "a - b",
            BinOpKind::Mul => "a * b",
            BinOpKind::Div => "a / b",
            BinOpKind::FloorDiv => "a // b",
            BinOpKind::Rem => "a % b",
            BinOpKind::Pow => "a ** b",
            BinOpKind::Eq => "a == b",
            BinOpKind::Ne => "a != b",
            BinOpKind::Lt => "a < b",
            BinOpKind::Lte => "a <= b",
            BinOpKind::Gt => "a > b",
            BinOpKind::Gte => "a >= b",
            BinOpKind::In => "a in b",
            BinOpKind::ScAnd | BinOpKind::ScOr => return failed("it can not be read"),
        };
        let counts = matches!(sign, "a - b" | "a * b" | "a / b" | "a // b" | "a % b" | "a ** b");
        if counts && !(number(&left) && number(&right)) {
            return failed(format!("`{}` is for numbers", &sign[2..sign.len() - 2]));
        }
        self.operation(sign, &[&left, &right])
    }

    fn compare(&mut self, op: CompareOpKind, a: &Value, b: &Value) -> Result<bool, Fault> {
        let (sign, wanted) = match op {
            CompareOpKind::Eq => ("a == b", true),
            CompareOpKind::Ne => ("a != b", true),
            CompareOpKind::Lt => ("a < b", true),
            CompareOpKind::Lte => ("a <= b", true),
            CompareOpKind::Gt => ("a > b", true),
            CompareOpKind::Gte => ("a >= b", true),
            CompareOpKind::In => ("a in b", true),
            CompareOpKind::NotIn => ("a in b", false),
        };
        let got = self.operation(sign, &[a, b])?;
        let said = self.there(got)?;
        Ok(holds(&said) == wanted)
    }

    fn operation(&mut self, sign: &str, on: &[&Value]) -> Got<'s> {
        let mut names = Vec::new();
        for (name, value) in ["a", "b", "c", "d"].into_iter().zip(on) {
            names.push((name, self.jinja(value)?));
        }
        let Some(operation) = OPERATIONS.get(sign) else { return failed("it can not be read") };
        let got = operation.eval(minijinja::Value::from_pairs(names)).map_err(fault)?;
        Ok(self.native(&got, 0)?.map(Cow::Owned))
    }

    fn jinja(&mut self, value: &Value) -> Result<minijinja::Value, Fault> {
        self.pay_for(value)?;
        Ok(minijinja::Value::from(Serde(value)))
    }

    #[allow(clippy::type_complexity)]
    fn args(
        &mut self,
        args: &[CallArg<'_>],
    ) -> Result<(Vec<Value>, BTreeMap<String, Value>), Fault> {
        let (mut plain, mut named) = (Vec::new(), BTreeMap::new());
        for arg in args {
            match arg {
                CallArg::Pos(value) => plain.push(self.value(value)?.into_owned()),
                CallArg::Kwarg(name, value) => {
                    named.insert((*name).to_owned(), self.value(value)?.into_owned());
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {
                    return failed("arguments are written out, `*` and `**` are not for them");
                }
            }
        }
        Ok((plain, named))
    }

    fn filter(
        &mut self,
        name: &str,
        got: Option<Cow<'s, Value>>,
        args: Vec<Value>,
        named: BTreeMap<String, Value>,
    ) -> Got<'s> {
        self.pay(VALUE_COST)?;
        if !FILTERS.contains(&name) {
            return failed(format!("there is no filter `{name}`"));
        }
        if let "default" | "d" = name {
            let also_empty = args.get(1).or(named.get("boolean")).is_some_and(holds);
            return match got {
                Some(value) if !also_empty || holds(&value) => Ok(Some(value)),
                _ => made(args.into_iter().next().unwrap_or_else(|| "".into())),
            };
        }
        let value = self.there(got)?;
        match (name, &*value) {
            ("length", Value::String(text)) => made(text.chars().count().into()),
            ("length", Value::Array(items)) => made(items.len().into()),
            ("length", Value::Object(members)) => made(members.len().into()),
            ("first", Value::Array(_)) => Ok(item(value, 0)),
            ("last", Value::Array(_)) => Ok(item(value, -1)),
            ("attr", _) => match args.first() {
                Some(Value::String(name)) => Ok(member(value, name)),
                _ => failed("`attr` needs a name"),
            },
            ("string", _) => {
                self.pay_for(&value)?;
                made(text(&value).into_owned().into())
            }
            ("tojson", _) if args.is_empty() && named.is_empty() => {
                self.pay_for(&value)?;
                made(value.to_string().into())
            }
            ("tojson", _) => failed("`tojson` takes nothing"),
            ("join", Value::Array(items)) => self.join(items, &args),
            ("join", _) => failed("`join` is for lists"),
            ("replace", _) => self.replace(&value, &args),
            ("map", Value::Array(items)) => self.map(items, args, named),
            ("select" | "reject" | "selectattr" | "rejectattr", Value::Array(items)) => {
                self.select(name, items, args)
            }
            ("map" | "select" | "reject" | "selectattr" | "rejectattr", _) => {
                failed(format!("`{name}` is for lists"))
            }
            // Texts would be joined again with every one.
            ("sum", _) if args.len() > 1 || named.contains_key("start") => {
                failed("`sum` begins with 0")
            }
            ("trim", Value::String(text)) => {
                let signs = args.first().and_then(Value::as_str).map_or(0, str::len);
                self.pay(text.len().saturating_mul(signs))?;
                self.theirs(name, &value, &args, named)
            }
            _ => self.theirs(name, &value, &args, named),
        }
    }

    /// A filter of Jinja: one that gives about as much as it gets.
    fn theirs(
        &mut self,
        name: &str,
        value: &Value,
        args: &[Value],
        named: BTreeMap<String, Value>,
    ) -> Got<'s> {
        let mut given = vec![self.jinja(value)?];
        for arg in args {
            given.push(self.jinja(arg)?);
        }
        if !named.is_empty() {
            let mut pairs = Vec::new();
            for (name, value) in named {
                pairs.push((name, self.jinja(&value)?));
            }
            given.push(minijinja::Value::from(pairs.into_iter().collect::<Kwargs>()));
        }
        let got = JINJA.empty_state().apply_filter(name, &given).map_err(fault)?;
        Ok(self.native(&got, 0)?.map(Cow::Owned))
    }

    fn join(&mut self, items: &[Value], args: &[Value]) -> Got<'s> {
        let between = args.first().map(text).unwrap_or_default();
        let mut joined = String::new();
        for (at, item) in items.iter().enumerate() {
            self.pay_for(item)?;
            if at > 0 {
                self.pay(between.len())?;
                joined.push_str(&between);
            }
            joined.push_str(&text(item));
        }
        made(joined.into())
    }

    fn replace(&mut self, value: &Value, args: &[Value]) -> Got<'s> {
        let (Value::String(within), [Value::String(from), Value::String(to)]) = (value, args)
        else {
            return failed("`replace` is for texts, and needs two of them");
        };
        self.pay(within.len())?;
        let found = within.matches(from.as_str()).count();
        self.pay(found.saturating_mul(to.len()).saturating_add(within.len()))?;
        made(within.replace(from.as_str(), to).into())
    }

    fn map(
        &mut self,
        items: &[Value],
        mut args: Vec<Value>,
        mut named: BTreeMap<String, Value>,
    ) -> Got<'s> {
        let attribute = named.remove("attribute");
        let default = match &attribute {
            Some(_) => named.remove("default"),
            None => None,
        };
        let filter = match &attribute {
            Some(_) => None,
            None if args.is_empty() => return failed("`map` needs a filter or attribute="),
            None => Some(text(&args.remove(0)).into_owned()),
        };
        let mut all = Vec::new();
        for item in items {
            self.pay(VALUE_COST)?;
            let got = match (&attribute, &filter) {
                (Some(path), _) => self.within(item, path)?.or(default.clone()),
                (None, Some(filter)) => {
                    self.pay_for(item)?;
                    for arg in args.iter().chain(named.values()) {
                        self.pay_for(arg)?;
                    }
                    let item = Some(Cow::Owned(item.clone()));
                    self.filter(filter, item, args.clone(), named.clone())?.map(Cow::into_owned)
                }
                (None, None) => None,
            };
            all.push(got.ok_or(Fault::Undefined(None))?);
        }
        made(Value::Array(all))
    }

    /// `a.b.0` within a value, paid for.
    fn within(&mut self, value: &Value, path: &Value) -> Result<Option<Value>, Fault> {
        let (path, mut at) = (text(path), Some(value));
        for part in path.split('.') {
            self.pay(VALUE_COST)?;
            at = at.and_then(|at| match at {
                Value::Array(items) => items.get(part.parse::<usize>().ok()?),
                other => other.get(part),
            });
        }
        if let Some(found) = at {
            self.pay_for(found)?;
        }
        Ok(at.cloned())
    }

    fn select(&mut self, name: &str, items: &[Value], mut args: Vec<Value>) -> Got<'s> {
        let attribute = match name {
            "selectattr" | "rejectattr" if args.is_empty() => {
                return failed(format!("`{name}` needs the name of a member"));
            }
            "selectattr" | "rejectattr" => Some(args.remove(0)),
            _ => None,
        };
        let test = match args.is_empty() {
            true => None,
            false => Some(text(&args.remove(0)).into_owned()),
        };
        let wanted = name.starts_with("select");
        let mut all = Vec::new();
        for item in items {
            self.pay(VALUE_COST)?;
            let looked_at = match &attribute {
                Some(path) => self.within(item, path)?,
                None => Some(item.clone()),
            };
            let is = match &test {
                Some(test) => self.test(test, looked_at.as_ref(), &args)?,
                None => looked_at.as_ref().is_some_and(holds),
            };
            if is == wanted {
                self.pay_for(item)?;
                all.push(item.clone());
            }
        }
        made(Value::Array(all))
    }

    fn test(&mut self, name: &str, value: Option<&Value>, args: &[Value]) -> Result<bool, Fault> {
        self.pay(VALUE_COST)?;
        match (name, value) {
            ("defined", value) => Ok(value.is_some()),
            ("undefined", value) => Ok(value.is_none()),
            (name, _) if !TESTS.contains(&name) => failed(format!("there is no test `{name}`")),
            (_, None) => Err(Fault::Undefined(self.absent.clone())),
            ("none", Some(value)) => Ok(value.is_null()),
            ("mapping", Some(value)) => Ok(value.is_object()),
            ("sequence", Some(value)) => Ok(value.is_array()),
            ("string", Some(value)) => Ok(value.is_string()),
            (_, Some(value)) => {
                let mut given = vec![self.jinja(value)?];
                for arg in args {
                    given.push(self.jinja(arg)?);
                }
                JINJA.empty_state().perform_test(name, &given).map_err(fault)
            }
        }
    }

    /// As JSON, paid for. No value at all is `None`; deep inside it is an error.
    fn native(&mut self, value: &minijinja::Value, depth: usize) -> Result<Option<Value>, Fault> {
        use ValueKind as K;
        self.pay(VALUE_COST)?;
        if depth > limits::DEPTH_MAX {
            return failed("its value is nested too deeply");
        }
        Ok(Some(match value.kind() {
            K::Undefined => return Ok(None),
            K::Seq | K::Iterable => {
                let mut items = Vec::new();
                for item in value.try_iter().map_err(fault)? {
                    items.push(self.native(&item, depth + 1)?.ok_or(Fault::Undefined(None))?);
                }
                Value::Array(items)
            }
            K::Map => {
                let mut object = Map::new();
                for key in value.try_iter().map_err(fault)? {
                    let item = value.get_item(&key).map_err(fault)?;
                    let name = key.to_string();
                    self.pay(name.len())?;
                    let item = self.native(&item, depth + 1)?.ok_or(Fault::Undefined(None))?;
                    object.insert(name, item);
                }
                Value::Object(object)
            }
            K::String => {
                let text = value.as_str().unwrap_or_default();
                self.pay(text.len())?;
                Value::String(text.to_owned())
            }
            // JSON has no infinity: left alone it would be null.
            K::Number if f64::try_from(value.clone()).is_ok_and(|n| !n.is_finite()) => {
                return failed("it comes to a number that is too large");
            }
            K::None | K::Bool | K::Number => {
                serde_json::to_value(value).map_err(|e| Fault::Failed(e.to_string()))?
            }
            other => return failed(format!("{other} is not JSON")),
        }))
    }
}

fn fault(e: minijinja::Error) -> Fault {
    match e.kind() {
        ErrorKind::UndefinedError => Fault::Undefined(None),
        kind => Fault::Failed(e.detail().map_or_else(|| kind.to_string(), str::to_owned)),
    }
}

/// Whether this asks a step for its output.
fn reads_output(node: &Expr<'_>) -> bool {
    match node {
        Expr::GetAttr(get) => get.name == "output",
        Expr::GetItem(get) => match &get.subscript_expr {
            Expr::Const(name) => name.value.as_str() == Some("output"),
            _ => false,
        },
        _ => false,
    }
}

/// What stands to the left in a chain.
pub(super) fn left_of<'e, 'a>(expr: &'e Expr<'a>) -> Option<&'e Expr<'a>> {
    match expr {
        Expr::BinOp(op) => Some(&op.left),
        Expr::Compare(chain) => Some(&chain.expr),
        Expr::Filter(filter) => filter.expr.as_ref(),
        Expr::Test(test) => Some(&test.expr),
        Expr::GetAttr(get) => Some(&get.expr),
        Expr::GetItem(get) => Some(&get.expr),
        Expr::Slice(slice) => Some(&slice.expr),
        _ => None,
    }
}

fn member<'s>(from: Cow<'s, Value>, name: &str) -> Option<Cow<'s, Value>> {
    match from {
        Cow::Borrowed(from) => from.as_object()?.get(name).map(Cow::Borrowed),
        Cow::Owned(Value::Object(mut members)) => members.remove(name).map(Cow::Owned),
        Cow::Owned(_) => None,
    }
}

/// An item by its number; from the end where that is below zero.
fn item(from: Cow<'_, Value>, at: i64) -> Option<Cow<'_, Value>> {
    let count = from.as_array()?.len();
    let at = match at {
        0.. => usize::try_from(at).ok()?,
        _ => count.checked_sub(usize::try_from(at.unsigned_abs()).ok()?)?,
    };
    match from {
        Cow::Borrowed(from) => from.get(at).map(Cow::Borrowed),
        Cow::Owned(Value::Array(mut items)) if at < count => {
            Some(Cow::Owned(items.swap_remove(at)))
        }
        Cow::Owned(_) => None,
    }
}
